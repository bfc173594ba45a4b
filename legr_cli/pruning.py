"""`legr_cli.prune` and `legr_cli.inspect`: a network and a target → a smaller network.

Nothing here reads data, writes files or prints.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn

from legr_cli.arguments import as_tuple
from legr_cli.channels import Units, apply, couple
from legr_cli.channels.check import disagreement
from legr_cli.channels.inputs import submodule
from legr_cli.channels.units import Kept, Pin
from legr_cli.cost import Cost, count_flops, count_params, price
from legr_cli.cut import UNLEARNED, arrange, cut, floor
from legr_cli.errors import LegrError, SettingError
from legr_cli.latency import Clock, Timing, fast_enough
from legr_cli.metrics.filters import Filters, collect_filters
from legr_cli.models.card import without_results
from legr_cli.models.checkpoints import fingerprint
from legr_cli.models.kept import kept_channels
from legr_cli.models.network import Network, as_network, on_cpu, part_of
from legr_cli.ranking import Ranking, check_ranking, filters_of, identity, importance, read_ranking
from legr_cli.settings import Align, LayerShares, Prune, check_min_keep, parse_align
from legr_cli.shapes import Shapes
from legr_cli.targets import TARGETS, Target
from legr_cli.version import __version__

ROUNDING = 1e-4  # relative difference to the masked dense network that float32 explains


@dataclass(frozen=True)
class Analysis:
    """The units, cost and filters of a network, computed once for all targets."""

    network: Network
    units: Units
    cost: Cost
    filters: Filters
    flops: int
    params: int
    sha256: str


@dataclass(frozen=True)
class Pruned:
    """A smaller network and what it costs."""

    target: Target
    network: Network
    flops: int  # by fvcore, on the pruned network itself
    params: int
    widths: dict[str, tuple[int, int]]  # by layer: channels kept and channels before
    difference: float  # relative, to the dense network with the removed channels masked
    timing: Timing | None  # if the target is a latency


def analyze(network: Network) -> Analysis:
    """Trace a network, group its channels into units and compute their cost."""
    units = couple(network.model, network.input_shape, network.module)
    cost = price(units)
    flops, params = (round(cost.total(terms, cost.sizes)) for terms in (cost.flops, cost.params))
    sha256 = fingerprint(network.model)
    return Analysis(network, units, cost, collect_filters(units), flops, params, sha256)


def resolve_ranking(
    analysis: Analysis, ranking: "Ranking | str | os.PathLike[str] | None"
) -> Ranking:
    """The given ranking, that of a file, uniform pruning for `"uniform"`, plain norms for None."""
    if isinstance(ranking, Ranking):
        check_ranking(ranking, analysis.filters)
        return ranking
    if ranking is None or ranking == "uniform":
        return replace(identity(analysis.filters), method=ranking or "norm")
    if not isinstance(ranking, str | os.PathLike):
        raise SettingError(
            f"ranking must be a Ranking, a file or 'uniform', got {type(ranking).__name__}"
        )
    return read_ranking(Path(ranking), analysis.filters, analysis.network.module)


def _scores(analysis: Analysis, ranking: Ranking) -> np.ndarray:
    """The score of each unit, which the cut sorts by."""
    filters = filters_of(ranking, analysis.filters, analysis.units)
    scores = importance(filters, ranking)
    unlearned = UNLEARNED.get(ranking.method)
    if unlearned is None or unlearned.scores is None:
        return scores
    return unlearned.scores(scores, analysis.cost.group_of)


def plans(
    analysis: Analysis, ranking: Ranking, settings: Prune, clock: Clock | None = None
) -> list[Kept]:
    """Choose the units to keep for each target, before anything is pruned.

    `clock` times a plan, for latency targets.
    """
    _check_width(analysis, settings.align)
    scores = _scores(analysis, ranking)
    blocks = arrange(
        analysis.units,
        analysis.cost,
        scores,
        settings.min_keep,
        settings.align,
        settings.min_keep_layers,
    )

    def at(what: str, share: float) -> Kept:
        counts = cut(analysis.cost, blocks, getattr(analysis.cost, what), share, TARGETS[what].noun)
        return blocks.kept(counts, analysis.cost)

    def decided(target: Target) -> Kept:
        if not target.kind.timed:
            return at(target.what, target.value)
        assert clock is not None
        least = floor(analysis.cost, blocks, analysis.cost.flops)
        return fast_enough(target, lambda share: at("flops", share), least, clock)

    return [decided(target) for target in settings.targets]


def lowest_share(
    analysis: Analysis, align: Align, min_keep: float = 0.1, layers: LayerShares = ()
) -> float:
    """The lowest share of the FLOPs that a network can be pruned to."""
    scores = importance(analysis.filters, identity(analysis.filters))
    blocks = arrange(analysis.units, analysis.cost, scores, min_keep, align, layers)
    return floor(analysis.cost, blocks, analysis.cost.flops)


def _check_width(analysis: Analysis, align: Align) -> None:
    """Raise if the alignment is wider than every layer, so that nothing could be pruned."""
    widest = int((analysis.cost.channels * analysis.cost.sizes).max())
    if align.block > widest and not align.narrow:
        raise SettingError(
            f"--align {align.block} is wider than every layer (the widest has {widest} channels): "
            "pass a smaller one or auto"
        )


def apply_plans(
    analysis: Analysis,
    ranking: Ranking,
    settings: Prune,
    decided: list[Kept],
    clock: Clock | None = None,
) -> Iterator[Pruned]:
    """Prune, count and verify one network after the other; only one is in memory at a time."""
    for target, kept in zip(settings.targets, decided, strict=True):
        timing = clock(kept) if target.kind.timed and clock is not None else None
        yield _apply_plan(analysis, ranking, settings, target, kept, timing)
        gc.collect()  # free the reference cycle of a graph and its module now


def _apply_plan(
    analysis: Analysis,
    ranking: Ranking,
    settings: Prune,
    target: Target,
    kept: Kept,
    timing: Timing | None,
) -> Pruned:
    """Prune one network and verify it."""
    network, units = analysis.network, analysis.units
    smaller = apply(units, kept)
    flops = count_flops(smaller, network.input_shape, network.module)
    params = count_params(submodule(smaller, network.module))
    difference = _checked(units, kept, smaller, target)
    notes = {
        "dense_sha256": analysis.sha256,
        "dense_flops": analysis.flops,
        "dense_params": analysis.params,
        "dense_channels": {name: len(layer.out) for name, layer in units.flow.layers.items()},
        **without_results(network.card).notes,
        "legr": __version__,
        "target": {target.what: target.value},
        "flops": {"before": analysis.flops, "after": flops},
        "params": {"before": analysis.params, "after": params},
        "method": ranking.method,
        "ranking_sha256": ranking.notes.get("file_sha256"),
        "align": settings.align.name,
        "min_keep": settings.min_keep,
    }
    if settings.min_keep_layers:
        notes["min_keep_layers"] = dict(settings.min_keep_layers)
    if timing is not None:
        notes["latency"] = asdict(timing)
    for key in ("statistics", "pictures", "class_names"):
        if key in ranking.notes:
            notes.setdefault(key, ranking.notes[key])
    channels = kept_channels(units, kept, network.kept)
    result = replace(network, model=smaller, kept=channels, notes=notes)
    return Pruned(target, result, flops, params, _widths(units, kept), difference, timing)


def _checked(units: Units, kept: Kept, smaller: nn.Module, target: Target) -> float:
    """Return the difference from the masked dense network; raise if it is more than rounding."""
    difference = disagreement(units, kept, smaller)
    if difference <= ROUNDING:
        return difference
    difference = disagreement(units, kept, smaller, exact=True)
    if difference > ROUNDING:
        raise LegrError(
            f"the network at {target.label} differs from the masked dense one by {difference:.1e} "
            "(relative); this is a bug in legr: please report it with the network"
        )
    return difference


def _widths(units: Units, kept: Kept) -> dict[str, tuple[int, int]]:
    """For each layer, the number of channels kept and before."""
    return {
        name: (int(np.count_nonzero(units.keeps(kept, layer.out))), len(layer.out))
        for name, layer in units.flow.layers.items()
    }


@dataclass(frozen=True)
class LayerSummary:
    """A layer with filters, as `inspect` shows it."""

    name: str
    kind: str
    channels: int
    units: int  # that its channels belong to
    groups: tuple[int, ...]  # layers of one group share their units
    flops: int  # one multiply-add counts as one
    pinned: tuple[Pin, ...]


@dataclass(frozen=True)
class NetworkSummary:
    """The prunable units and the cost of a network."""

    arch: str
    input_shape: Shapes
    flops: int  # for one image, by fvcore; one multiply-add counts as one
    params: int
    units: int  # sets of channels that can only be removed together
    groups: int
    lowest_flops_share: dict[str, float]  # by `--align`
    layers: tuple[LayerSummary, ...]
    pinned: tuple[Pin, ...]  # also of layers that have no rule, and so no summary
    tied: tuple[Pin, ...]  # layers that are one unit, and the op that ties them
    other_flops: int  # of norms, pools, recurrent layers and the like
    sha256: str  # of the weights
    module: str = ""  # the part of the network that this is about; "": all of it
    whole_flops: int | None = None  # of the network around that part, if fvcore can count them


def inspect(
    model: nn.Module,
    input_shape: Sequence[int] | Shapes | None = None,
    *,
    module: str = "",
    keep: Sequence[str] = (),
    min_keep: float | Mapping[str, float] = 0.1,
) -> NetworkSummary:
    """Show what can be pruned in a network, layer by layer.

    Args:
        model: Any module; it is not changed.
        input_shape: Shape of one image, such as `(3, 224, 224)`, or of each input by name; a module
            from legr knows its own.
        module: Name of the part to look at, such as `"backbone"`.
        keep: Patterns of layer names that are never pruned, for the lowest reachable share.
        min_keep: Minimum share of each layer's channels to keep, or shares by pattern.

    Returns:
        Layers, prunable units, FLOPs, and which channels are pinned and why.

    Raises:
        ModelError: The network cannot be traced, or does not run on such images.
        SettingError: `input_shape` is missing or is not a shape.

    Example:
        >>> legr_cli.inspect(model, (3, 96, 96)).lowest_flops_share["auto"]
        0.031
    """
    network = part_of(as_network(model, input_shape), module)
    analysis = analyze(replace(network, model=on_cpu(network.model)))
    return summarize(analysis, *_min_keep(min_keep, keep))


def _min_keep(
    min_keep: float | Mapping[str, float], keep: Sequence[str]
) -> tuple[float, LayerShares]:
    """The share of all layers to keep, and those of some."""
    by_pattern = min_keep if isinstance(min_keep, Mapping) else {}
    share = Prune.min_keep if isinstance(min_keep, Mapping) else min_keep
    layers = (*((pattern, 1.0) for pattern in as_tuple(keep, "keep")), *by_pattern.items())
    check_min_keep(share, layers)
    return share, layers


def summarize(
    analysis: Analysis, min_keep: float = 0.1, keep_layers: LayerShares = ()
) -> NetworkSummary:
    """Summarize an analysis, as `inspect` returns it."""
    units, cost = analysis.units, analysis.cost
    flops = cost.flops_by_layer(cost.sizes)
    layers = []
    for name, layer in units.flow.layers.items():
        free = units.unit_of(layer.out)
        free = free[free >= 0]
        groups = sorted(set(cost.group_of[free].tolist()))
        layers.append(
            LayerSummary(
                name,
                layer.kind,
                len(layer.out),
                len(set(free.tolist())),
                tuple(groups),
                round(flops[name]),
                tuple(pin for pin in units.pins if pin.layer == name),
            )
        )
    return NetworkSummary(
        str(analysis.network.arch),
        analysis.network.input_shape,
        analysis.flops,
        analysis.params,
        units.count,
        len(cost.sizes),
        {
            name: lowest_share(analysis, parse_align(name), min_keep, keep_layers)
            for name in ("auto", "1")
        },
        tuple(layers),
        units.pins,
        units.tied,
        analysis.flops - round(sum(flops[name] for name in units.flow.layers)),
        analysis.sha256,
        analysis.network.module,
        _whole_flops(analysis.network),
    )


def _whole_flops(network: Network) -> int | None:
    """FLOPs of a network of which only a part is looked at; None if fvcore cannot count them."""
    if not network.module:
        return None
    try:
        return count_flops(network.model, network.input_shape)
    except LegrError:
        return None


def prune(
    model: nn.Module,
    input_shape: Sequence[int] | Shapes | None = None,
    *,
    flops: float | None = None,
    params: float | None = None,
    ranking: "Ranking | str | os.PathLike[str] | None" = None,
    align: str | int = "auto",
    min_keep: float | Mapping[str, float] = 0.1,
    keep: Sequence[str] = (),
    module: str = "",
    arch: str | Callable[..., nn.Module] | None = None,
) -> nn.Module:
    """Prune a network to a share of its FLOPs or parameters: offline, without data.

    The result is verified: its output matches that of `model` with the removed channels masked.

    Args:
        model: Any module; it is not changed.
        input_shape: Shape of one image, such as `(3, 224, 224)`, or of each input by name; a module
            from legr knows its own.
        flops: Share of the FLOPs to keep at most, over 0 and up to 1.
        params: Share of the parameters to keep at most; pass either this or `flops`.
        ranking: What `legr_cli.learn` gave, a ranking.json, `"uniform"` for the same share of
            every layer, or None for plain squared norms.
        align: Multiples to keep channel counts at, as `--align` takes them; 1 is the paper's.
        min_keep: Minimum share of each layer's channels to keep, or shares by pattern of layer
            names, such as `{"stage1.*": 0.5}`.
        keep: Patterns of layer names that are never pruned, such as `["head"]`.
        module: Name of the part to prune, such as `"backbone"`; the rest stays as it is. Targets
            are shares of this part.
        arch: `"module:factory"` of a network of your own, or the factory itself, so that
            `legr_cli.save` can write the result.

    Returns:
        A new module in evaluation mode, with a card that `save` and `finetune` use.

    Raises:
        BudgetError: The target cannot be reached.
        ModelError: The network cannot be traced, or does not run on such images.
        RankingError: The ranking belongs to another network.
        SettingError: An argument is out of range.

    Example:
        >>> smaller = legr_cli.prune(model, (3, 224, 224), flops=0.4)
    """
    targets = [
        Target(what, share)
        for what, share in (("flops", flops), ("params", params))
        if share is not None
    ]
    if len(targets) != 1:
        raise SettingError("pass one of flops and params")
    share, layers = _min_keep(min_keep, keep)
    settings = Prune(
        targets=tuple(targets),
        align=parse_align(str(align)),
        min_keep=share,
        min_keep_layers=layers,
    )
    network = part_of(as_network(model, input_shape, arch), module)
    analysis = analyze(replace(network, model=on_cpu(network.model)))
    resolved = resolve_ranking(analysis, ranking)
    decided = plans(analysis, resolved, settings)
    [pruned] = apply_plans(analysis, resolved, settings, decided)
    return pruned.network.carried().eval()
