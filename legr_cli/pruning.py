"""The whole of a prune, without files or printing: a network and settings → smaller networks."""

import gc
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from legr_cli import __version__
from legr_cli.channels import Units, apply, couple
from legr_cli.channels.check import disagreement
from legr_cli.channels.units import Kept
from legr_cli.cost import Cost, count_flops, count_params, price
from legr_cli.cut import arrange, cut, floor, uniform_scores
from legr_cli.errors import LegrError, ModelError, SettingError
from legr_cli.latency import Clock, Timing, fast_enough
from legr_cli.models.checkpoints import fingerprint
from legr_cli.models.kept import kept_channels
from legr_cli.models.network import Network
from legr_cli.models.registry import Arch
from legr_cli.ranking import Filters, Ranking, collect_filters, identity, importance, read_ranking
from legr_cli.settings import Align, Prune, parse_align
from legr_cli.targets import Target

ROUNDING = 1e-4  # relative difference to the silenced dense network that single precision makes
WORDS = {"flops": "FLOPs", "params": "parameters"}


@dataclass(frozen=True)
class Analysis:
    """A network, taken apart once for all its targets."""

    network: Network
    units: Units
    cost: Cost
    filters: Filters
    flops: int
    params: int
    sha256: str


@dataclass(frozen=True)
class Pruned:
    """A smaller network and how it came out."""

    target: Target
    network: Network
    flops: int  # by fvcore, on the pruned network itself
    params: int
    widths: dict[str, tuple[int, int]]  # by layer: channels kept, and of how many
    difference: float  # to the dense network with the removed channels silenced
    timing: Timing | None  # where the target is a latency


def analyze(network: Network) -> Analysis:
    """Trace, tie and price a network."""
    units = couple(network.model, network.input_shape)
    cost = price(units)
    flops, params = (round(cost.of(terms, cost.sizes)) for terms in (cost.flops, cost.params))
    sha256 = fingerprint(network.model)
    return Analysis(network, units, cost, collect_filters(units), flops, params, sha256)


def resolve_ranking(analysis: Analysis, name: str | os.PathLike[str] | None) -> Ranking:
    """The ranking in a file, "uniform", or α = 1, κ = 0."""
    if name is None or name == "uniform":
        return replace(identity(analysis.filters), method=name or "norm")
    return read_ranking(Path(name), analysis.filters)


def _scores(analysis: Analysis, ranking: Ranking) -> np.ndarray:
    """By unit, what the cut sorts by."""
    scores = importance(analysis.filters, ranking)
    return uniform_scores(scores, analysis.cost.group_of) if ranking.method == "uniform" else scores


def plans(
    analysis: Analysis, ranking: Ranking, settings: Prune, clock: Clock | None = None
) -> list[Kept]:
    """The units to keep for each target; all are decided before anything is cut.

    A latency is a matter of measuring: `clock` times a plan.
    """
    _check_width(analysis, settings.align)
    scores = _scores(analysis, ranking)
    blocks = arrange(analysis.units, analysis.cost, scores, settings.min_keep, settings.align)
    terms_of = {"flops": analysis.cost.flops, "params": analysis.cost.params}

    def at(what: str, share: float) -> Kept:
        counts = cut(analysis.cost, blocks, terms_of[what], share, WORDS[what])
        return blocks.kept(counts, analysis.cost)

    def decided(target: Target) -> Kept:
        if not target.timed:
            return at(target.what, target.value)
        assert clock is not None
        least = floor(analysis.cost, blocks, analysis.cost.flops)
        return fast_enough(target, lambda share: at("flops", share), least, clock)

    return [decided(target) for target in settings.targets]


def lowest_share(analysis: Analysis, align: Align, min_keep: float = 0.1) -> float:
    """The lowest share of FLOPs that a target may ask for."""
    scores = importance(analysis.filters, identity(analysis.filters))
    blocks = arrange(analysis.units, analysis.cost, scores, min_keep, align)
    return floor(analysis.cost, blocks, analysis.cost.flops)


def _check_width(analysis: Analysis, align: Align) -> None:
    """An alignment that no layer is as wide as would leave nothing to prune."""
    widest = int((analysis.cost.channels * analysis.cost.sizes).max())
    if align.block > widest and not align.narrow:
        raise SettingError(
            f"--align {align.block} is larger than every layer (the widest has {widest}): "
            "pass a smaller one or auto"
        )


def apply_plans(
    analysis: Analysis,
    ranking: Ranking,
    settings: Prune,
    decided: list[Kept],
    clock: Clock | None = None,
) -> Iterator[Pruned]:
    """Cut, count and check one network after the other; only one is in memory at a time."""
    for target, kept in zip(settings.targets, decided, strict=True):
        timing = clock(kept) if target.timed and clock is not None else None
        yield _carry_out_one(analysis, ranking, settings, target, kept, timing)
        gc.collect()  # a graph and its module refer to each other: give their memory back now


def _carry_out_one(
    analysis: Analysis,
    ranking: Ranking,
    settings: Prune,
    target: Target,
    kept: Kept,
    timing: Timing | None,
) -> Pruned:
    """Cut one network and see that it is right."""
    network, units = analysis.network, analysis.units
    smaller = apply(units, kept)
    flops, params = count_flops(smaller, network.input_shape), count_params(smaller)
    difference = _checked(units, kept, smaller, target)
    notes = {
        "dense_sha256": analysis.sha256,
        "dense_flops": analysis.flops,
        "dense_params": analysis.params,
        "dense_channels": {name: len(layer.out) for name, layer in units.flow.layers.items()},
        **_lasting(network.notes),
        "legr": __version__,
        "target": {target.what: target.value},
        "flops": {"before": analysis.flops, "after": flops},
        "params": {"before": analysis.params, "after": params},
        "method": ranking.method,
        "ranking_sha256": ranking.notes.get("file_sha256"),
        "align": settings.align.name,
        "min_keep": settings.min_keep,
    }
    if timing is not None:
        notes["latency"] = asdict(timing)
    if "statistics" in ranking.notes:
        notes.setdefault("statistics", ranking.notes["statistics"])
    channels = kept_channels(units, kept, network.kept)
    result = Network(smaller, network.arch, network.input_shape, channels, notes)
    return Pruned(target, result, flops, params, _widths(units, kept), difference, timing)


def _lasting(notes: dict[str, Any]) -> dict[str, Any]:
    """What is known of a network and stays true of one cut from it: not what it reached."""
    return {key: value for key, value in notes.items() if key not in ("training", "latency")}


def _checked(units: Units, kept: Kept, smaller: nn.Module, target: Target) -> float:
    """The difference to the dense network, or an error if it is more than rounding."""
    difference = disagreement(units, kept, smaller)
    if difference <= ROUNDING:
        return difference
    difference = disagreement(units, kept, smaller, exact=True)
    if difference > ROUNDING:
        raise LegrError(
            f"the network at {target.label} differs from the dense one by {difference:.1e} "
            "(relative) where it should not; this is a bug of legr's: please report the network"
        )
    return difference


def _widths(units: Units, kept: Kept) -> dict[str, tuple[int, int]]:
    """By layer the channels that stay and those there were."""
    return {
        name: (int(np.count_nonzero(units.keeps(kept, layer.out))), len(layer.out))
        for name, layer in units.flow.layers.items()
    }


def prune(
    model: nn.Module,
    input_shape: tuple[int, ...],
    flops: float | None,
    params: float | None,
    align: str,
    min_keep: float,
    ranking: str | os.PathLike[str] | None,
) -> nn.Module:
    """`legr_cli.prune`: one target, from a module to a module."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model.module
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    given = [Target(what, s) for what, s in (("flops", flops), ("params", params)) if s is not None]
    if len(given) != 1:
        raise SettingError("pass one of flops and params")
    if not all(type(side) is int and side > 0 for side in input_shape):
        raise SettingError(f"input_shape must be sizes such as (3, 224, 224), got {input_shape}")
    settings = Prune(targets=tuple(given), align=parse_align(str(align)), min_keep=min_keep)
    analysis = analyze(Network(model, Arch(type(model).__name__), input_shape))
    learned = resolve_ranking(analysis, ranking)
    decided = plans(analysis, learned, settings)
    return next(apply_plans(analysis, learned, settings, decided)).network.model
