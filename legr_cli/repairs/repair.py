"""`legr_cli.repair`: a pruned network, the dense one and a few pictures → a network that works."""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, fx, nn

from legr_cli.channels import Units, apply, couple
from legr_cli.channels.inputs import Call, captured, submodule
from legr_cli.channels.surgery import put_back
from legr_cli.channels.switches import evaluating
from legr_cli.channels.units import Kept
from legr_cli.errors import CheckpointError, ModelError, first_line
from legr_cli.models.card import card_of, unwrap
from legr_cli.models.checkpoints import fingerprint
from legr_cli.models.kept import kept_units
from legr_cli.models.network import Network, as_network, in_single_precision
from legr_cli.progress import Message, Report, reporting, silent
from legr_cli.repairs.closeness import divergences
from legr_cli.repairs.layers import RepairedLayer, repair_layers
from legr_cli.repairs.pictures import RepairData, RepairImages, choose_pictures
from legr_cli.settings import Pictures as PictureSettings
from legr_cli.settings import Repair
from legr_cli.version import __version__


@dataclass(frozen=True)
class RepairResult:
    """A repaired network, and what the repair was worth on pictures that it did not see."""

    network: Network
    helped: bool  # False: the network is the cut one, since the repair brought it no closer
    before: float  # divergence from the dense network
    after: float
    images: int  # those held out included
    held_out: int
    layers: tuple[RepairedLayer, ...]
    notes: tuple[str, ...]

    @property
    def left(self) -> tuple[RepairedLayer, ...]:
        """The layers without a closed form."""
        return tuple(layer for layer in self.layers if layer.reason is not None)


def repair(
    smaller: nn.Module,
    dense: nn.Module,
    data: Any,
    *,
    images: int = 512,
    ridge: float = 0.1,
    seed: int = 0,
    outputs: str | None = None,
    normalize: str | None = None,
    resize: str | None = None,
    crop: float | None = None,
    transform: str | None = None,
    download: bool = False,
    force: bool = False,
    progress: Report | None = None,
) -> nn.Module:
    """Give a pruned network new weights that bring its outputs close to the dense network's.

    Layer by layer, the weights are fitted to what the dense network computes on a few images, by
    ridge regression: no labels, no gradients, no training. A fifth of the images is held out; if
    the repaired network is no closer to the dense one on them, a copy of `smaller` is returned.

    Args:
        smaller: A module from `prune` or `load`; it is not changed.
        dense: The network that it was cut from; it is not changed.
        data: A SPEC such as `"images:DIR"` or `"cifar10:DIR"`, a DataLoader, a tensor of images, or
            an iterable of batches; labels are ignored. Images of your own must be prepared as the
            network takes them.
        images: Maximum number of images to use.
        ridge: Weight of the squared change, relative to the mean square of a layer's inputs. With
            few images, a larger one such as 1 may work better.
        seed: Random seed that chooses the images.
        outputs: What outputs of images × numbers are, where closeness is judged: `"classes"` for
            class scores, `"values"` for numbers such as angles. Defaults to what the network's card
            records, or else to `"classes"`.
        normalize: For a SPEC: mean and standard deviation, as `--normalize` takes them.
        resize: For a SPEC: `"crop"`, `"squash"`, `"pad"` or `"none"`, as for `--resize`. It and
            `crop` default to what the network's card records, or else to the dataset's usual.
        crop: For `resize="crop"`: side of the central crop, relative to the resized image's.
        transform: For a SPEC: `"module:function"` that makes the input of a PIL image, instead of
            resizing, cropping and normalizing it.
        download: For a SPEC: download the dataset first, if torchvision provides it.
        force: Also repair a network that is fine-tuned, which undoes the training.
        progress: Called with progress events, for example `print`.

    Returns:
        A new module in evaluation mode. Its card records the repair, and how close it came.

    Raises:
        CheckpointError: `smaller` was cut from a network with other weights.
        DataError: There are fewer than two images, or they do not fit the network.
        ModelError: `smaller` was not pruned by legr, nothing was removed from it, it is already
            fine-tuned, or activations are NaN or infinite.
        SettingError: An argument is out of range.

    Example:
        >>> usable = legr_cli.repair(smaller, dense, "images:camera")
    """
    settings = Repair(images=images, ridge=ridge, seed=seed, outputs=outputs)
    card = card_of(unwrap(smaller))
    if card is None:
        raise ModelError(
            f"this {type(smaller).__name__} was not pruned by legr: pass what legr_cli.prune "
            "returned"
        )
    network = as_network(smaller)
    teacher = as_network(dense, card.input_shape)
    check_repairable(network, force)

    given = RepairData(
        data=data,
        settings=settings,
        normalize=normalize,
        pictures=PictureSettings(resize=resize, crop=crop, transform=transform),
        download=download,
    )
    return repair_network(
        network, teacher, partial(choose_pictures, given=given), settings, reporting(progress)
    ).network.carried()


def check_repairable(network: Network, force: bool) -> None:
    """Raise unless a network was pruned, and not trained since."""
    if network.kept is None:
        raise ModelError(f"nothing was removed from this {network.arch}: prune it first")
    if "training" in network.notes and not force:
        raise ModelError(
            f"this {network.arch} is already fine-tuned, and repair would undo that: repair the "
            "network that prune wrote, or pass --force"
        )


def repair_network(
    network: Network,
    dense: Network,
    pictures: Callable[[Network], RepairImages],
    settings: Repair,
    progress: Report = silent,
) -> RepairResult:
    """Repair a network; `pictures` gives the pictures as the dense network takes them."""
    with _memory_errors():
        return _repair_network(network, dense, pictures, settings, progress)


@contextlib.contextmanager
def _memory_errors() -> Iterator[None]:
    """Raise a ModelError where memory does not suffice."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        raise ModelError("there is not enough memory for the repair: use fewer --images") from error


def _repair_network(
    network: Network,
    dense: Network,
    pictures: Callable[[Network], RepairImages],
    settings: Repair,
    progress: Report,
) -> RepairResult:
    """Repair a network whose pictures are still to be chosen."""
    check_origin(network, dense)
    model = in_single_precision(dense.model)
    with evaluating(model):
        units = couple(model, dense.input_shape, network.module)
        kept = kept_units(units, network.kept or {})
        if kept.all():
            raise ModelError(f"nothing was removed from this {network.arch}: prune it first")
        cut = _filled(units, kept, network)
        given = _reaching(units, pictures(_with_statistics(network, dense)))
        return _repair(network, units, kept, cut, given, settings, progress)


def _repair(
    network: Network,
    units: Units,
    kept: Kept,
    cut: fx.GraphModule,
    pictures: RepairImages,
    settings: Repair,
    progress: Report,
) -> RepairResult:
    """Repair a copy of `cut`, and judge it on the held-out pictures."""
    for line in pictures.described:
        progress(Message(line))
    repaired = copy.deepcopy(cut)
    layers = repair_layers(
        units,
        kept,
        repaired,
        pictures.fit,
        ridge=settings.ridge,
        seed=settings.seed,
        progress=progress,
    )
    values = (settings.outputs or network.outputs) == "values"
    before, after = divergences([cut, repaired], units.flow.traced, pictures.held_out, values)
    helped = after < before
    held_out = sum(map(len, pictures.held_out))
    notes = [*pictures.notes, *_advice(layers, pictures.count - held_out)]
    if not helped:
        notes.append(
            f"repair did not help: on {held_out} held-out images the divergence from the dense "
            f"network went from {before:.3g} to {after:.3g}, so the weights were left unchanged; "
            "more images may help"
        )
    for note in notes:
        progress(Message(note))
    record = {
        **pictures.about,
        "ridge": settings.ridge,
        "seed": settings.seed,
        "dense_sha256": network.notes.get("dense_sha256"),
        "divergence": {"before": _number(before), "after": _number(after)},
        "left": {layer.name: layer.reason for layer in layers if layer.reason is not None},
        "legr": __version__,
    }
    stays = {key: note for key, note in network.notes.items() if key != "training"}
    result = replace(network, model=put_back(network.model, network.module, cut))
    if helped:
        whole = put_back(network.model, network.module, repaired)
        result = replace(
            network,
            model=whole,
            notes={
                **stays,
                **pictures.shown,
                **({"outputs": "values"} if values else {}),
                "repaired": record,
            },
        )
    return RepairResult(
        result, helped, before, after, pictures.count, held_out, tuple(layers), tuple(notes)
    )


def check_origin(network: Network, dense: Network) -> None:
    """Raise unless `network` was cut from exactly this dense network."""
    expected = network.notes.get("dense_sha256")
    if expected is not None and fingerprint(dense.model) != expected:
        which = "" if dense.arch.name == network.arch.name else f", a {dense.arch},"
        raise CheckpointError(
            f"--dense{which} is not the network that this {network.arch} was pruned from (other "
            "weights): pass the file that prune read"
        )


def _filled(units: Units, kept: Kept, network: Network) -> fx.GraphModule:
    """The dense network (or its part) cut as the pruned one is, with the pruned one's weights."""
    cut = submodule(apply(units, kept), network.module)
    assert isinstance(cut, fx.GraphModule)
    weights = submodule(network.model, network.module).state_dict()
    try:
        cut.load_state_dict({n: t.detach().cpu() for n, t in weights.items()})
    except RuntimeError as error:
        raise ModelError(
            f"the network no longer matches its card: {first_line(error)}; repair it before layers "
            "are replaced"
        ) from error
    return cut


def _reaching(units: Units, pictures: RepairImages) -> RepairImages:
    """What of the pictures reaches the part of the network that was pruned."""
    fit, held_out = (
        [reaching(units, batch) for batch in part] for part in (pictures.fit, pictures.held_out)
    )
    return replace(pictures, fit=fit, held_out=held_out)


def reaching(units: Units, batch: Tensor) -> Tensor:
    """What of a batch reaches the part of the network that was pruned."""
    model, module = units.source.model, units.source.module
    if not module:
        return batch
    found = captured(model, module, Call((batch,))).tensors
    if len(found) != 1:
        raise ModelError(
            f"'{module}' takes {len(found)} tensors: repair supports parts that take one tensor"
        )
    return found[0]


def _with_statistics(network: Network, dense: Network) -> Network:
    """The network, with the dense one's image statistics where it has none."""
    known = {k: dense.notes[k] for k in ("statistics",) if k in dense.notes}
    return replace(network, notes={**known, **network.notes})


def _advice(layers: Sequence[RepairedLayer], images: int) -> list[str]:
    """A note where some layers have more unknowns than rows."""
    short = [layer for layer in layers if 0 < layer.rows < layer.unknowns]
    if not short:
        return []
    wanted = max(math.ceil(images * layer.unknowns / layer.rows) for layer in short)
    worst = max(short, key=lambda layer: layer.unknowns / layer.rows)
    return [
        f"more weights per channel than samples in {len(short)} of {len(layers)} layers "
        f"('{worst.name}': {worst.unknowns}, {worst.rows}); {wanted:,} images would be better"
    ]


def _number(value: float) -> float | None:
    """A number as JSON has it."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
