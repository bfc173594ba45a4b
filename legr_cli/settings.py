"""What a user can set: parsed and checked once, and stored with the result."""

import itertools
import math
import platform
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from legr_cli.errors import SettingError
from legr_cli.targets import Target, check_value

BLOCKS = {"avx512": 16, "avx2": 8, "arm": 4}  # channels that a CPU's kernels work on at once

NARROW = 4  # blocks that a group has at least, before blocks get smaller


@dataclass(frozen=True)
class Align:
    """Channels in multiples of `block`; `auto` uses smaller blocks in narrow groups."""

    name: str = "1"
    block: int = 1
    narrow: int = 0  # halve the block until a group is so many blocks wide; 0: never

    def blocks(self, widths: np.ndarray, channels: np.ndarray) -> np.ndarray:
        """Units in a block for groups of these widths, whose units have so many channels each."""
        block = np.full(len(widths), self.block)
        if self.narrow:
            while (coarse := (block > 1) & (widths < self.narrow * block)).any():
                block[coarse] //= 2
        return block // np.gcd(block, channels)

    def __str__(self) -> str:
        if self.block == 1:
            return f"{self.name}: any number of channels, the paper's own cut"
        rule = ", fewer where narrow" if self.narrow else ""
        return f"{self.name}: multiples of {self.block}{rule}"


def parse_align(text: str, cpu: str | None = None) -> Align:
    """`auto` (`cpu`, or this one), `avx512`, `avx2`, `arm`, or a number; 1 is the paper's own."""
    if text == "auto":
        name = cpu or this_cpu()
        return Align(f"auto ({name})", BLOCKS.get(name, 4), NARROW)
    if text in BLOCKS:
        return Align(text, BLOCKS[text], NARROW)
    if not re.fullmatch(r"\d{1,6}", text) or int(text) < 1:
        raise SettingError(
            f"--align {text}: expected auto, {', '.join(BLOCKS)} or a number of channels from 1"
        )
    return Align(text, int(text))


def this_cpu() -> str:
    """The kind of kernels that ONNX Runtime would use on this machine."""
    if platform.machine().lower() in ("aarch64", "arm64", "armv7l", "armv8l"):
        return "arm"
    import torch

    return {"AVX512": "avx512", "AVX2": "avx2"}.get(
        torch.backends.cpu.get_cpu_capability(), "other"
    )


def parse_input(text: str | None) -> tuple[int, ...] | None:
    """`3x224x224`: channels and sides of one image; None stays None."""
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,5}(x\d{1,5}){1,3}", text) or "0" in text.split("x"):
        raise SettingError(f"--input {text}: expected channels and sides such as 3x224x224")
    return tuple(int(side) for side in text.split("x"))


@dataclass(frozen=True, kw_only=True)
class Prune:
    """The settings of a prune."""

    targets: tuple[Target, ...]
    align: Align
    min_keep: float = 0.1  # share of every layer that is never removed

    def __post_init__(self) -> None:
        if not self.targets:
            raise SettingError("no target: pass --flops 0.4, --params 0.4 or --latency 0.5")
        if not isinstance(self.min_keep, int | float) or not 0 <= self.min_keep <= 1:
            raise SettingError(f"--min-keep must be from 0 to 1, got {self.min_keep}")
        if len({target.label for target in self.targets}) < len(self.targets):
            raise SettingError("a target is given twice")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """How networks are timed."""

    threads: int = 1
    seconds: float = 3.0  # for each network
    core: int | None = None  # None: the fastest

    def __post_init__(self) -> None:
        _within(self, threads=(1, 1024), seconds=(0.01, 86_400))
        if self.core is not None:
            _within(self, core=(0, 100_000))


MANY, LARGEST_SEED = 10**6, 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Search:
    """The settings of a search for a ranking (paper, Algorithm 1)."""

    flops: tuple[float, ...] = (0.2,)  # ζ̂: the shares at which candidates are compared
    candidates: int = 400  # E
    population: int = 64  # P: candidates alive at once
    sample: int = 16  # S: of which the fittest is a parent
    mutate: float = 0.1  # u: share of the layers that change
    sigma: float = 1.0  # random walk of log α; κ walks by its layer's deviation × sigma
    sigma_end: float = 1.0  # what sigma has come to at the last candidate
    start: str = "auto"  # the first pool: changes of the identity (α = 1, κ = 0), of α and κ that
    # take the same share of every layer (level), of the fitter of the two; or all at random
    fitness: str = "finetune"
    steps: int | None = None  # τ̂: batches to adapt on; None: as many as the fitness implies
    batch_size: int = 128
    lr: float = 0.01
    amp: bool = False  # those steps in half precision, where the device has it
    val_images: int = 10_000  # images to measure on, at most
    min_keep: float = 0.1
    align: Align = Align()
    seed: int = 0
    workers: int = 1  # W: candidate e may depend on results up to e − W

    def __post_init__(self) -> None:
        _ = self.cut  # checks its shares and --min-keep
        _within(
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
            _within(self, steps=(0, MANY))
        if self.population < self.sample:
            raise SettingError(
                f"--population {self.population} is smaller than --sample {self.sample}: "
                "parents are sampled from the population"
            )
        _one_of(self, start=("auto", "identity", "level", "random"))
        for name in ("mutate", "sigma", "sigma_end", "lr"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise SettingError(f"{option(name)} must be over 0 and finite, got {value}")
        if self.mutate > 1:
            raise SettingError(f"--mutate is a share of the layers: at most 1, got {self.mutate}")

    @property
    def cut(self) -> Prune:
        """How every candidate is cut."""
        targets = tuple(Target("flops", share) for share in self.flops)
        return Prune(targets=targets, align=self.align, min_keep=self.min_keep)


@dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of a training; `recipes` has the paper's."""

    recipe: str
    epochs: int
    lr: float  # the highest
    schedule: str = "steps"  # or "one-cycle"
    drops: tuple[float, ...] = ()  # steps: after so many epochs the rate falls …
    drop_by: float = 10.0  # … by this factor
    warmup: float = 0.0  # share of the training in which the rate rises to its highest
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    batch_size: int = 128
    patience: int = 0  # stop after so many epochs without a better one; 0: never
    label_smoothing: float = 0.0
    clip: float = 0.0  # largest norm of a gradient; 0: any
    ema: float = 0.0  # decay of the moving average of the weights; 0: none
    teacher_weight: float = 0.9  # of the teacher's answer in the loss, where there is a teacher
    temperature: float = 4.0  # at which answers are compared
    amp: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise SettingError(f"--lr must be over 0, got {self.lr}")
        _within(
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
            raise SettingError("--momentum 0 has no Nesterov form: pass --no-nesterov")
        _one_of(self, schedule=("steps", "one-cycle"))
        if any(b <= a for a, b in itertools.pairwise((0, *self.drops, self.epochs))):
            raise SettingError("--drops: expected epochs in rising order, before the last one ends")
        if len(self.drops) > 20:
            raise SettingError(f"--drops: expected 20 at most, got {len(self.drops)}")


@dataclass(frozen=True, kw_only=True)
class Compare:
    """The settings of a comparison; what methods share, they have in common."""

    methods: tuple[str, ...]
    targets: tuple[Target, ...]
    training: Training  # of every network in the end
    align: Align = Align()
    min_keep: float = 0.1
    search_flops: tuple[float, ...] = ()  # where one ranking for all targets is learned: the lowest
    candidates: int = 400  # of every search; AMC's episodes for each target
    sigma: float = 1.0  # of the random walk of all searches but AMC's
    fitness: str = "finetune"
    steps: int | None = None
    lr: float = 0.01  # of a candidate's steps and of MorphNet's
    batch_size: int = 128
    val_images: int = 10_000
    round_units: int = 1  # Taylor, Fisher: units (or blocks) that go in a round …
    round_steps: int = 500  # … after so many steps
    round_lr: float = 0.0025
    fisher_weight: float = 1.0  # λ, relative to what units are worth and cost on average
    trials: int = 3  # MorphNet: values of λ that are tried for each target …
    trial_steps: int = 2000  # … for so many steps
    repeats: int = 1  # with other seeds
    seed: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if len(set(self.methods)) < len(self.methods):
            raise SettingError("--methods: one is named twice")
        _ = Prune(targets=self.targets, align=self.align, min_keep=self.min_keep)
        for share in self.search_flops:
            check_value("flops", share, "search-flops")
        _ = self.search(self.search_flops or (self.targets[0].value,), self.seed)  # what they share
        _within(
            self,
            round_units=(1, MANY),
            round_steps=(1, MANY),
            round_lr=(1e-9, 1000),
            fisher_weight=(0, 1e6),
            trials=(1, 100),
            trial_steps=(1, MANY),
            repeats=(1, 1000),
            seed=(0, LARGEST_SEED - 1000),
        )

    def search(self, flops: tuple[float, ...], seed: int) -> Search:
        """A search at these shares of the FLOPs."""
        population = min(Search.population, self.candidates)
        return Search(
            flops=flops,
            candidates=self.candidates,
            population=population,
            sample=max(1, population // 4),
            sigma=self.sigma,
            sigma_end=self.sigma,
            fitness=self.fitness,
            steps=self.steps,
            batch_size=self.batch_size,
            lr=self.lr,
            amp=self.training.amp,
            val_images=self.val_images,
            min_keep=self.min_keep,
            align=self.align,
            seed=seed,
            workers=self.workers,
        )


def parse_drops(text: str) -> tuple[float, ...]:
    """`18,36,48`: epochs after which the learning rate falls; `none` for a constant rate."""
    if text == "none":
        return ()
    parts = text.split(",")
    if not all(re.fullmatch(r"\d{1,7}(\.\d{1,6})?", part) for part in parts):
        raise SettingError(f"--drops {text}: expected epochs such as 18,36,48, or none")
    return tuple(float(part) for part in parts)


def _within(settings: Any, **limits: tuple[float, float]) -> None:
    """Every number from its least to its most."""
    for name, (least, most) in limits.items():
        value = getattr(settings, name)
        if not value >= least:
            raise SettingError(f"{option(name)} must be at least {least}, got {value}")
        if not value <= most:
            raise SettingError(f"{option(name)} must be at most {most}, got {value}")


def _one_of(settings: Any, **choices: tuple[str, ...]) -> None:
    """Every word one of those that are known."""
    for name, known in choices.items():
        if (value := getattr(settings, name)) not in known:
            raise SettingError(f"{option(name)} must be {' or '.join(known)}, got {value}")


def option(name: str) -> str:
    """`batch_size` as the command line has it."""
    return "--" + name.replace("_", "-")
