"""Settings of every command: parsed and validated once, and stored with the result."""

import itertools
import math
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from legr_cli.arguments import check_choice, check_types, check_within, option
from legr_cli.errors import SettingError
from legr_cli.targets import Target, check_value

BLOCKS = {"avx512": 16, "avx2": 8, "arm": 4}  # channels that a CPU's kernels process at once

NARROW = 4  # groups narrower than this many blocks use smaller blocks


@dataclass(frozen=True)
class Align:
    """Round channel counts to multiples of `block`; `auto` uses smaller blocks in narrow groups."""

    name: str = "1"
    block: int = 1
    narrow: int = 0  # halve the block until a group is at least this many blocks wide; 0: never

    def blocks(self, widths: np.ndarray, channels: np.ndarray) -> np.ndarray:
        """Units per block for groups with these widths and these numbers of channels per unit."""
        block = np.full(len(widths), self.block)
        if self.narrow:
            while (coarse := (block > 1) & (widths < self.narrow * block)).any():
                block[coarse] //= 2
        return block // np.gcd(block, channels)

    def __str__(self) -> str:
        if self.block == 1:
            return f"{self.name}: any number of channels, as in the paper"
        rule = ", fewer in narrow groups" if self.narrow else ""
        return f"{self.name}: multiples of {self.block}{rule}"


def parse_align(text: str, cpu: str | None = None) -> Align:
    """Parse `auto` (for `cpu`, or this machine), `avx512`, `avx2`, `arm`, or a number of channels.

    1 leaves the cut as in the paper.
    """
    if text == "auto":
        name = cpu or this_cpu()
        return Align(f"auto ({name})", BLOCKS.get(name, 4), NARROW)
    if text in BLOCKS:
        return Align(text, BLOCKS[text], NARROW)
    if not re.fullmatch(r"\d{1,6}", text) or int(text) < 1:
        raise SettingError(
            f"--align {text}: expected auto, {', '.join(BLOCKS)} or a positive number of channels"
        )
    return Align(text, int(text))


def this_cpu() -> str:
    """The instruction set that ONNX Runtime's kernels would use on this machine."""
    if platform.machine().lower() in ("aarch64", "arm64", "armv7l", "armv8l"):
        return "arm"
    import torch

    return {"AVX512": "avx512", "AVX2": "avx2"}.get(
        torch.backends.cpu.get_cpu_capability(), "other"
    )


LayerShares = tuple[tuple[str, float], ...]  # by pattern of layer names: the share to keep


def parse_min_keep(texts: Sequence[str], keep: Sequence[str] = ()) -> tuple[float, LayerShares]:
    """Parse `0.1` and `stage1.*=0.5`; the patterns in `keep` are kept whole.

    Returns the share for all layers, and those for some.
    """
    share, layers = 0.1, [(pattern, 1.0) for pattern in keep]
    for text in texts:
        pattern, equals, number = text.rpartition("=")
        try:
            value = float(number if pattern or not equals else "")
        except ValueError:
            raise SettingError(
                f"--min-keep {text}: expected a share such as 0.1, or PATTERN=SHARE"
            ) from None
        if pattern:
            layers.append((pattern, value))
        else:
            share = value
    return share, tuple(layers)


def check_min_keep(share: Any, layers: LayerShares) -> None:
    """Check the share of every layer to keep, and those of some layers."""
    for name, value in (("--min-keep", share), *((f"--min-keep {p}", v) for p, v in layers)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise SettingError(f"{name} must be from 0 to 1, got {value}")


RESIZES = ("crop", "squash", "pad", "none")
RANDOM_CROPS = ("none", "padded", "resized")


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """How pictures are brought to the input size, and varied in training.

    None leaves a choice to the network's file or, if that records none, to the dataset.
    """

    resize: str | None = None  # one of RESIZES
    crop: float | None = None  # resize "crop": side of the central crop, relative to the picture's
    random_crop: str | None = None  # in training: one of RANDOM_CROPS
    flip: bool | None = None  # in training: whether to mirror half of the pictures
    transform: str | None = None  # "module:function" of the user's own, instead of all that

    def __post_init__(self) -> None:
        check_types(self)
        for name, known in (("resize", RESIZES), ("random_crop", RANDOM_CROPS)):
            if getattr(self, name) is not None:
                check_choice(self, **{name: known})
        if self.transform is not None and replace(self, transform=None) != Pictures():
            raise SettingError(
                "--transform makes the whole input from an image: remove --resize, --crop, "
                "--random-crop and --flip"
            )
        if self.crop is None:
            return
        check_within(self, crop=(0.1, 1))
        if self.resize not in (None, "crop"):
            raise SettingError(f"--crop is for --resize crop, this is --resize {self.resize}")

    def over(self, other: "Pictures") -> "Pictures":
        """These choices and, where they leave one open, those of `other`."""
        if self.transform is not None or (self == Pictures() and other.transform is not None):
            return Pictures(transform=self.transform or other.transform)
        other = replace(other, transform=None)
        resize = self.resize or ("crop" if self.crop else other.resize)
        crop = self.crop or (other.crop if resize == other.resize else None)
        return Pictures(
            resize=resize,
            crop=crop if resize == "crop" else None,
            random_crop=self.random_crop or other.random_crop,
            flip=other.flip if self.flip is None else self.flip,
        )


@dataclass(frozen=True, kw_only=True)
class Prune:
    """Settings of pruning."""

    targets: tuple[Target, ...]
    align: Align
    min_keep: float = 0.1  # fraction of every layer that is always kept
    min_keep_layers: LayerShares = ()  # for layers that match a pattern: at least this fraction

    def __post_init__(self) -> None:
        if not self.targets:
            raise SettingError("no target: pass --flops 0.4, --params 0.4 or --latency 0.5")
        check_min_keep(self.min_keep, self.min_keep_layers)
        if len({target.label for target in self.targets}) < len(self.targets):
            raise SettingError("the same target is given twice")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Settings of latency measurements."""

    threads: int = 1
    seconds: float = 3.0  # per network
    core: int | None = None  # None: the fastest core

    def __post_init__(self) -> None:
        check_types(self)
        check_within(self, threads=(1, 1024), seconds=(0.01, 86_400))
        if self.core is not None:
            check_within(self, core=(0, 100_000))


OUTPUTS = ("classes", "values")  # what outputs of images × numbers are
MANY, LARGEST_SEED = 10**6, 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Repair:
    """Settings of a closed-form repair."""

    images: int = 512
    ridge: float = 0.1  # weight of ‖Δ‖², relative to the mean square of the layer's inputs
    seed: int = 0  # chooses the images
    outputs: str | None = None  # one of OUTPUTS; None: what the network's file records

    def __post_init__(self) -> None:
        check_types(self)
        if self.outputs is not None:
            check_choice(self, outputs=OUTPUTS)
        check_within(self, images=(2, MANY), ridge=(1e-9, 1e6), seed=(0, LARGEST_SEED))


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings of the search for a ranking; the defaults are those of the paper's Algorithm 1."""

    flops: tuple[float, ...] = (0.2,)  # ζ̂: fractions of the FLOPs at which candidates are compared
    candidates: int = 400  # E: candidates to evaluate
    population: int = 64  # P: candidates alive at once
    sample: int = 16  # S: tournament size
    mutate: float = 0.1  # u: fraction of the layers that mutate
    sigma: float = 1.0  # step of the random walk in log α; in κ, × the layer's standard deviation
    sigma_end: float = 1.0  # sigma at the last candidate
    # The initial population mutates the identity (α = 1, κ = 0), "level" (the α and κ that cut the
    # same fraction of every layer), or the fitter of the two ("auto"), or of the identity and what
    # the divergence with each group halved suggests ("sensitivity"); or it is drawn at random.
    start: str = "auto"
    explorer: str = "evolution"  # how candidates are proposed
    metric: str = "squared-norm"  # the importance metric that α scales and κ shifts
    objective: str = "mean"  # how the results at several `flops` become one
    minutes: float | None = None  # evaluate as many candidates as fit, instead of `candidates`
    # Do not measure a candidate at further shares once its divergence exceeds the best one's by
    # this factor; 0: always measure
    reject_above: float = 0.0
    fitness: str = "finetune"
    steps: int | None = None  # τ̂: adaptation steps per candidate; None: the default of the fitness
    batch_size: int = 128
    lr: float = 0.01
    amp: bool = False  # adapt in half precision where the device supports it
    val_images: int = 10_000  # maximum number of images to evaluate on
    min_keep: float = 0.1
    min_keep_layers: LayerShares = ()
    align: Align = Align()
    seed: int = 0
    workers: int = 1  # W: candidate e depends only on results up to e − W

    def __post_init__(self) -> None:
        check_types(self)
        _ = self.cut  # validates --flops and --min-keep
        check_within(
            self,
            candidates=(1, MANY),
            population=(1, MANY),
            sample=(1, MANY),
            workers=(1, 1024),
            batch_size=(2, MANY),
            val_images=(1, MANY),
            seed=(0, LARGEST_SEED),
        )
        if self.steps is not None:
            check_within(self, steps=(0, MANY))
        if self.population < self.sample:
            raise SettingError(
                f"--population {self.population} is smaller than --sample {self.sample}: "
                "parents are sampled from the population"
            )
        check_choice(self, start=("auto", "identity", "level", "sensitivity", "random"))
        for name in ("mutate", "sigma", "sigma_end", "lr"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise SettingError(f"{option(name)} must be positive and finite, got {value}")
        if self.reject_above and not 1 < self.reject_above < math.inf:
            raise SettingError(
                f"--reject-above must be over 1, or 0 to measure all, got {self.reject_above}"
            )
        if self.reject_above and self.objective != "log":
            raise SettingError("--reject-above compares logarithms: it needs --objective log")
        if self.minutes is not None:
            check_within(self, minutes=(0.01, MANY))
            if self.sigma_end != self.sigma:
                raise SettingError("--sigma-end needs --candidates: pass it instead of --minutes")
        if self.mutate > 1:
            raise SettingError(
                f"--mutate is a fraction of the layers: at most 1, got {self.mutate}"
            )

    @property
    def cut(self) -> Prune:
        """The settings with which every candidate is pruned."""
        targets = tuple(Target("flops", share) for share in self.flops)
        return Prune(
            targets=targets,
            align=self.align,
            min_keep=self.min_keep,
            min_keep_layers=self.min_keep_layers,
        )


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of training and fine-tuning; `recipes` has those of the paper."""

    recipe: str
    epochs: int
    lr: float  # peak learning rate
    schedule: str = "steps"  # or "one-cycle"
    drops: tuple[float, ...] = ()  # epochs after which "steps" divides the learning rate …
    drop_by: float = 10.0  # … by this factor
    warmup: float = 0.0  # fraction of the training over which the learning rate rises to its peak
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    batch_size: int = 128
    patience: int = 0  # stop after this many epochs without improvement; 0: never
    label_smoothing: float = 0.0
    clip: float = 0.0  # maximum gradient norm; 0: no clipping
    ema: float = 0.0  # decay of the moving average of the weights; 0: no average
    teacher_weight: float = 0.9  # weight of the distillation term, if there is a teacher
    temperature: float = 4.0  # distillation temperature
    freeze_bn: bool = False  # whether BatchNorm statistics stay as they are
    amp: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        if not self.lr > 0:
            raise SettingError(f"--lr must be positive, got {self.lr}")
        check_within(
            self,
            epochs=(1, MANY),
            batch_size=(2, MANY),
            patience=(0, MANY),
            seed=(0, LARGEST_SEED),
            lr=(0, 1000),
            drop_by=(1, 1e6),
            warmup=(0, 0.99),
            momentum=(0, 0.9999),
            weight_decay=(0, 1000),
            label_smoothing=(0, 0.99),
            clip=(0, 1e9),
            ema=(0, 0.999999),
            teacher_weight=(0, 1),
            temperature=(0.01, 1000),
        )
        if self.nesterov and not self.momentum:
            raise SettingError("Nesterov momentum needs --momentum above 0: pass --no-nesterov")
        check_choice(self, schedule=("steps", "one-cycle"))
        if any(b <= a for a, b in itertools.pairwise((0, *self.drops, self.epochs))):
            raise SettingError(
                f"--drops: expected increasing epochs between 0 and --epochs {self.epochs}"
            )
        if len(self.drops) > 20:
            raise SettingError(f"--drops: expected at most 20 epochs, got {len(self.drops)}")


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Settings of a comparison; every method gets the same ones where they apply."""

    methods: tuple[str, ...]
    targets: tuple[Target, ...]
    training: Training  # final fine-tuning of every network
    align: Align = Align()
    min_keep: float = 0.1
    repair: int = 0  # images to repair every network with before fine-tuning; 0: no repair
    teacher: bool = False  # whether the dense network is the teacher in fine-tuning
    search_flops: tuple[float, ...] = ()  # at which rankings are learned; (): what the targets span
    candidates: int | None = None  # per search; for AMC, episodes per target
    sigma: float = 1.0  # step of the random walk, in all searches but AMC's
    fitness: str | None = None  # None: repair, where the network can be repaired
    steps: int | None = None
    lr: float = 0.01  # learning rate of the candidates' steps and of MorphNet
    batch_size: int = 128
    val_images: int | None = None
    round_units: int = 1  # Taylor, Fisher: units (or blocks) removed per round …
    round_steps: int = 500  # … after this many training steps
    round_lr: float = 0.0025
    fisher_weight: float = 1.0  # λ, relative to the mean information and mean FLOPs of a unit
    trials: int = 3  # MorphNet: values of λ to try per target …
    trial_steps: int = 2000  # … for this many training steps each
    repeats: int = 1  # runs, each with its own seed
    seed: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        check_types(self)
        if not self.methods:
            raise SettingError("no method: pass --methods legr,uniform")
        if len(set(self.methods)) < len(self.methods):
            raise SettingError("--methods: the same method is given twice")
        _ = Prune(targets=self.targets, align=self.align, min_keep=self.min_keep)
        if self.repair == 1:
            raise SettingError("--repair must be at least 2 images, or 0 for no repair, got 1")
        for share in self.search_flops:
            check_value("flops", share, "search-flops")
        check_within(
            self,
            repair=(0, MANY),
            batch_size=(2, MANY),
            lr=(1e-12, 1000),
            round_units=(1, MANY),
            round_steps=(1, MANY),
            round_lr=(1e-9, 1000),
            fisher_weight=(0, 1e6),
            trials=(1, 100),
            trial_steps=(1, MANY),
            repeats=(1, 1000),
            seed=(0, LARGEST_SEED - 1000),
        )


def parse_drops(text: str) -> tuple[float, ...]:
    """Parse epochs after which the learning rate drops (`18,36,48`); `none` keeps it constant."""
    if text == "none":
        return ()
    parts = text.split(",")
    if not all(re.fullmatch(r"\d{1,7}(\.\d{1,6})?", part) for part in parts):
        raise SettingError(f"--drops {text}: expected epochs such as 18,36,48, or none")
    return tuple(float(part) for part in parts)


def given(**arguments: Any) -> dict[str, Any]:
    """The arguments that are not None, to override settings with."""
    return {name: value for name, value in arguments.items() if value is not None}
