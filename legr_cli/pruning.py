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
from legr_cli.baselines.uniform import even
from legr_cli.channels import Units, apply, couple
from legr_cli.channels.check import disagreement
from legr_cli.channels.units import Kept
from legr_cli.cost import Cost, count_flops, count_params, price
from legr_cli.cut import arrange, cut, floor
from legr_cli.errors import LegrError, ModelError, SettingError
from legr_cli.latency import Clock, Timing, fast_enough
from legr_cli.models.registry import Arch
from legr_cli.models.weights import fingerprint
from legr_cli.networks import Network, kept_channels
from legr_cli.ranking import Filters, Ranking, filters, identity, importance, read_ranking
from legr_cli.settings import Align, Prune, parse_align
from legr_cli.targets import Target

ROUNDING = 1e-4  # relative difference to the silenced dense network that single precision makes
WORDS = {"flops": "FLOPs", "params": "parameters"}


@dataclass(frozen=True)
class Study:
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


def study(network: Network) -> Study:
    """Trace, tie and price a network."""
    units = couple(network.model, network.input_shape)
    cost = price(units)
    flops, params = (round(cost.of(bill, cost.sizes)) for bill in (cost.flops, cost.params))
    sha256 = fingerprint(network.model)
    return Study(network, units, cost, filters(units), flops, params, sha256)


def ranking_for(known: Study, name: str | os.PathLike[str] | None) -> Ranking:
    """The ranking in a file, "uniform", or α = 1, κ = 0."""
    if name is None or name == "uniform":
        return replace(identity(known.filters), method=name or "norm")
    return read_ranking(Path(name), known.filters)


def _scores(known: Study, ranking: Ranking) -> np.ndarray:
    """By unit, what the cut sorts by."""
    scores = importance(known.filters, ranking)
    return even(scores, known.cost.group_of) if ranking.method == "uniform" else scores


def plans(
    known: Study, ranking: Ranking, settings: Prune, clock: Clock | None = None
) -> list[Kept]:
    """The units to keep for each target; all are decided before anything is cut.

    A latency is a matter of measuring: `clock` times a plan.
    """
    _check_width(known, settings.align)
    scores = _scores(known, ranking)
    blocks = arrange(known.units, known.cost, scores, settings.min_keep, settings.align)
    bills = {"flops": known.cost.flops, "params": known.cost.params}

    def at(what: str, share: float) -> Kept:
        counts = cut(known.cost, blocks, bills[what], share, WORDS[what])
        return blocks.kept(counts, known.cost)

    def decided(target: Target) -> Kept:
        if not target.timed:
            return at(target.what, target.value)
        assert clock is not None
        least = floor(known.cost, blocks, known.cost.flops)
        return fast_enough(target, lambda share: at("flops", share), least, clock)

    return [decided(target) for target in settings.targets]


def lowest_share(known: Study, align: Align, min_keep: float = 0.1) -> float:
    """The lowest share of FLOPs that a target may ask for."""
    scores = importance(known.filters, identity(known.filters))
    blocks = arrange(known.units, known.cost, scores, min_keep, align)
    return floor(known.cost, blocks, known.cost.flops)


def _check_width(known: Study, align: Align) -> None:
    """An alignment that no layer is as wide as would leave nothing to prune."""
    widest = int((known.cost.channels * known.cost.sizes).max())
    if align.block > widest and not align.narrow:
        raise SettingError(
            f"--align {align.block} is larger than every layer (the widest has {widest}): "
            "pass a smaller one or auto"
        )


def carry_out(
    known: Study,
    ranking: Ranking,
    settings: Prune,
    decided: list[Kept],
    clock: Clock | None = None,
) -> Iterator[Pruned]:
    """Cut, count and check one network after the other; only one is in memory at a time."""
    for target, kept in zip(settings.targets, decided, strict=True):
        timing = clock(kept) if target.timed and clock is not None else None
        yield _carry_out_one(known, ranking, settings, target, kept, timing)
        gc.collect()  # a graph and its module refer to each other: give their memory back now


def _carry_out_one(
    known: Study,
    ranking: Ranking,
    settings: Prune,
    target: Target,
    kept: Kept,
    timing: Timing | None,
) -> Pruned:
    """Cut one network and see that it is right."""
    network, units = known.network, known.units
    smaller = apply(units, kept)
    flops, params = count_flops(smaller, network.input_shape), count_params(smaller)
    difference = _checked(units, kept, smaller, target)
    notes = {
        "dense_sha256": known.sha256,
        "dense_flops": known.flops,
        "dense_params": known.params,
        "dense_channels": {name: len(layer.out) for name, layer in units.flow.layers.items()},
        **_lasting(network.notes),
        "legr": __version__,
        "target": {target.what: target.value},
        "flops": {"before": known.flops, "after": flops},
        "params": {"before": known.params, "after": params},
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
    known = study(Network(model, Arch(type(model).__name__), input_shape))
    learned = ranking_for(known, ranking)
    decided = plans(known, learned, settings)
    return next(carry_out(known, learned, settings, decided)).network.model
