"""MorphNet (Gordon et al. 2018): a Lasso penalty on BatchNorm's γ, weighted by FLOPs.

While the network trains, λ · Σ over units of (∂FLOPs/∂unit) · |γ| is added to the loss. The FLOPs
are those of the units that are still alive; for a unit of several channels, the largest |γ| counts.
λ is searched for each target. Widths are not expanded again, as in the paper's comparison. Only the
structure is learned: the dense weights are pruned, not those that the Lasso shrank.
"""

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from legr_cli.baselines.context import MethodContext, MethodResult
from legr_cli.baselines.effort import Effort, total
from legr_cli.baselines.gradual import ROUNDS, copy_analysis, train_round
from legr_cli.channels.units import Units
from legr_cli.errors import ModelError
from legr_cli.journal import Line
from legr_cli.pruning import Analysis
from legr_cli.targets import Target, falling
from legr_cli.training.loop import Loss, Trainer, sgd, task_loss
from legr_cli.training.resume import RunFiles, open_record
from legr_cli.training.tasks import Task

METHOD = "morphnet"
DEAD = 0.01  # a unit is dead if all of its |γ| are at most this
MOMENTUM = 0.9
FACTOR = 4.0  # between values of λ, while all results are on one side of the target


def morphnet(
    context: MethodContext, _targets: list[Target], todo: set[Target]
) -> Iterator[MethodResult]:
    """For each target, train with several λ, and rank units by γ in the closest result."""
    if not any((units >= 0).any() for _, units in _gammas(context.analysis.units)):
        raise ModelError("needs BatchNorm layers with γ, and this network has none")
    settings, analysis = context.settings, context.analysis
    for target in falling(todo):
        budget = target.value * analysis.flops
        own_settings = {name: getattr(settings, name) for name in ("trials", "trial_steps", "lr")}
        own_settings["flops"] = target.value
        files = RunFiles(context.record_files(METHOD, target), True, False, kind=ROUNDS)
        best = torch.zeros(analysis.units.count, dtype=torch.double)
        header = context.header(METHOD, **own_settings)
        with open_record(files, header, {"scores": best}) as record:
            for number in range(len(record.book.lines) + 1, settings.trials + 1):
                lines = list(record.book.lines.values())
                weight = next_lambda(lines, budget, _initial_lambda(context))
                context.report(f"trial {number}/{settings.trials}, λ = {weight:.3g}")
                line, scores = _trial(context, number, weight)
                gaps = [abs(trial["flops"] - budget) for trial in (*lines, line)]
                if gaps[-1] <= min(gaps):
                    best.copy_(torch.from_numpy(scores))
                record.add(line, {"scores": best})
            effort = total(map(Effort.from_line, record.book.lines.values()))
            ranking = context.ranking(METHOD, best.numpy(), **own_settings)
            yield MethodResult(target, analysis, ranking, effort)
        files.state.unlink(missing_ok=True)


def _gammas(units: Units) -> list[tuple[Tensor, np.ndarray]]:
    """γ of every BatchNorm layer that has one, and the unit of each of its channels."""
    modules = dict(units.flow.traced.named_modules())
    return [
        (tensor, units.unit_of(ids[0]))
        for name, tensor, ids in units.flow.owners
        if isinstance(module := modules.get(name), _BatchNorm) and tensor is module.weight
    ]


def unit_gammas(units: Units) -> Tensor:
    """For each unit, the largest |γ| of its channels; -1 if it has none."""
    gammas = [(gamma[of >= 0].abs(), of[of >= 0]) for gamma, of in _gammas(units)]
    values = torch.cat([gamma for gamma, _ in gammas])
    index = torch.from_numpy(np.concatenate([of for _, of in gammas])).to(values.device)
    initial = values.new_full((units.count,), -1.0)
    return initial.scatter_reduce(0, index, values, "amax", include_self=True)


def flops_penalty(analysis: Analysis) -> Tensor:
    """Σ over units of ∂FLOPs/∂unit · |γ|, relative to the dense network's FLOPs."""
    cost, gammas = analysis.cost, unit_gammas(analysis.units)
    price = cost.marginal(cost.flops, _alive_counts(analysis, gammas)) / analysis.flops
    weights = torch.from_numpy(price[cost.group_of]).to(gammas)
    return (weights * gammas.clamp(min=0)).sum()


def _alive_counts(analysis: Analysis, gammas: Tensor) -> np.ndarray:
    """Number of alive units in each group, at least one; units without γ are always alive."""
    alive = ((gammas < 0) | (gammas > DEAD)).cpu().numpy()
    return np.maximum(analysis.cost.counts(alive), 1)


def _trial(context: MethodContext, number: int, weight: float) -> tuple[Line, np.ndarray]:
    """Train a copy with one λ; return the trial's journal line and the scores of units."""
    start, settings = time.perf_counter(), context.settings
    analysis = copy_analysis(context.analysis)
    model = analysis.units.flow.traced.to(context.torch_device).requires_grad_(True)
    loss = _penalized_loss(analysis, weight, context.task)
    trainer = Trainer(model, sgd(model, settings.lr, MOMENTUM), loss)
    train_round(context, trainer, settings.trial_steps, number, context.reference)
    model.cpu()
    gammas = unit_gammas(analysis.units).detach()
    if not torch.isfinite(gammas).all():
        raise ModelError("the loss became NaN or infinite: lower --lr")
    cost = analysis.cost
    line = {
        "round": number,
        "lambda": weight,
        "flops": cost.total(cost.flops, _alive_counts(analysis, gammas)),
        "seconds": round(time.perf_counter() - start, 4),
        "steps": settings.trial_steps,
        "images": settings.trial_steps * settings.batch_size,
    }
    return line, _scores(gammas)


def _penalized_loss(analysis: Analysis, weight: float, task: Task) -> Loss:
    """The task's loss + λ · FLOPs penalty."""
    unpenalized = task_loss(task)

    def loss(outputs: Any, images: Tensor, targets: Any) -> Tensor:
        return unpenalized(outputs, images, targets) + weight * flops_penalty(analysis)

    return loss


def _initial_lambda(context: MethodContext) -> float:
    """The λ that shrinks γ = 1 to 0 in one trial, for a unit of average cost without gradient."""
    settings, cost = context.settings, context.analysis.cost
    price = cost.marginal(cost.flops, cost.sizes)[cost.group_of].mean() / context.analysis.flops
    return float((1 - MOMENTUM) / (settings.lr * settings.trial_steps * price))


def next_lambda(lines: list[Line], budget: float, initial: float) -> float:
    """The next λ to try: between those with too many and too few FLOPs, or beyond all of them."""
    weak = [line["lambda"] for line in lines if line["flops"] > budget]
    strong = [line["lambda"] for line in lines if line["flops"] <= budget]
    if weak and strong:
        return math.sqrt(max(weak) * min(strong))
    if not lines:
        return initial
    return max(weak) * FACTOR if weak else min(strong) / FACTOR


def _scores(gammas: Tensor) -> np.ndarray:
    """|γ| of each unit; units without γ get the highest score, so that they are kept."""
    scores = gammas.double().cpu().numpy()
    return np.where(scores < 0, scores.max() + 1, scores)
