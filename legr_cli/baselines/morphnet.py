"""MorphNet (Gordon et al. 2018): a Lasso on BatchNorm's γ, weighted by the FLOPs that go with it.

While the network trains, the loss has λ · Σ over units of (∂FLOPs/∂unit) · |γ| beside it, where the
FLOPs are those of the units still alive, and of units of several channels the largest |γ| counts.
λ is searched for each target; widths do not grow again, as in the paper's comparison. What is
learned is the structure: it is cut from the dense weights, not from those that the Lasso shrank.
"""

import math
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from legr_cli.baselines.context import Level, MethodContext
from legr_cli.baselines.effort import Effort, total
from legr_cli.baselines.gradual import ROUNDS, copy_analysis, learn
from legr_cli.channels.units import Units
from legr_cli.errors import ModelError
from legr_cli.journal import Line
from legr_cli.pruning import Analysis
from legr_cli.targets import Target, falling
from legr_cli.training.loop import Loss, Trainer, sgd, task_loss
from legr_cli.training.resume import RunFiles, open_record

METHOD = "morphnet"
DEAD = 0.01  # a unit whose γ are all smaller is as good as gone
MOMENTUM = 0.9
STRIDE = 4.0  # between values of λ while only one side of the target is known


def morphnet(context: MethodContext, _targets: list[Target], todo: set[Target]) -> Iterator[Level]:
    """For each target: train with some λ, and rank units by their γ in the nearest result."""
    if not any((of >= 0).any() for _, of in _gammas(context.analysis.units)):
        raise ModelError("it needs BatchNorm with a γ, and this network has none")
    settings, analysis = context.settings, context.analysis
    for target in falling(todo):
        budget = target.value * analysis.flops
        about = {name: getattr(settings, name) for name in ("trials", "trial_steps", "lr")}
        about["flops"] = target.value
        files = RunFiles(context.work(METHOD, target), resume=True, force=False, kind=ROUNDS)
        best = torch.zeros(analysis.units.count, dtype=torch.double)
        with open_record(files, context.header(METHOD, **about), {"scores": best}) as record:
            for number in range(len(record.book.lines) + 1, settings.trials + 1):
                lines = list(record.book.lines.values())
                weight = next_weight(lines, budget, _first(context))
                context.tell(f"trial {number}/{settings.trials}, λ = {weight:.3g}")
                line, scores = _trial(context, number, weight)
                gaps = [abs(other["flops"] - budget) for other in (*lines, line)]
                if gaps[-1] <= min(gaps):
                    best.copy_(torch.from_numpy(scores))
                record.add(line, {"scores": best})
            effort = total(map(Effort.from_line, record.book.lines.values()))
            yield Level(target, analysis, context.ranking(METHOD, best.numpy(), **about), effort)
        files.state.unlink(missing_ok=True)


def _gammas(units: Units) -> list[tuple[Tensor, np.ndarray]]:
    """γ of every BatchNorm that has one, and the unit of each of its channels."""
    modules = dict(units.flow.traced.named_modules())
    return [
        (tensor, units.unit_of(ids[0]))
        for name, tensor, ids in units.flow.owners
        if isinstance(module := modules.get(name), _BatchNorm) and tensor is module.weight
    ]


def worth(units: Units) -> Tensor:
    """By unit the largest |γ| of its channels; -1 where it has none."""
    found = [(gamma[of >= 0].abs(), of[of >= 0]) for gamma, of in _gammas(units)]
    values = torch.cat([gamma for gamma, _ in found])
    index = torch.from_numpy(np.concatenate([of for _, of in found])).to(values.device)
    none = values.new_full((units.count,), -1.0)
    return none.scatter_reduce(0, index, values, "amax", include_self=True)


def regulariser(analysis: Analysis) -> Tensor:
    """Σ over units of ∂FLOPs/∂unit · |γ|, as a share of the dense network's FLOPs."""
    cost, values = analysis.cost, worth(analysis.units)
    price = cost.marginal(cost.flops, _alive(analysis, values))[cost.group_of] / analysis.flops
    weights = torch.from_numpy(price).to(values)
    return (weights * values.clamp(min=0)).sum()


def _alive(analysis: Analysis, values: Tensor) -> np.ndarray:
    """Units of each group that are alive; a unit without γ always is, and one of each group."""
    alive = ((values < 0) | (values > DEAD)).cpu().numpy()
    return np.maximum(analysis.cost.counts(alive), 1)


def _trial(context: MethodContext, number: int, weight: float) -> tuple[Line, np.ndarray]:
    """Train a copy with one λ; what is left alive of the FLOPs, and the scores of units."""
    begun, settings, analysis = (
        time.perf_counter(),
        context.settings,
        copy_analysis(context.analysis),
    )
    model = analysis.units.flow.traced.to(context.where).requires_grad_(True)
    trainer = Trainer(model, sgd(model, settings.lr, MOMENTUM), _loss(analysis, weight))
    learn(context, trainer, settings.trial_steps, number)
    model.cpu()
    values = worth(analysis.units).detach()
    if not torch.isfinite(values).all():
        raise ModelError("the loss is no number any more: pass a lower --lr")
    cost = analysis.cost
    line = {
        "round": number,
        "lambda": weight,
        "flops": cost.total(cost.flops, _alive(analysis, values)),
        "seconds": round(time.perf_counter() - begun, 4),
        "steps": settings.trial_steps,
        "images": settings.trial_steps * settings.batch_size,
    }
    return line, _scores(values)


def _loss(analysis: Analysis, weight: float) -> Loss:
    """Cross entropy + λ · regulariser."""

    def loss(logits: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        return task_loss()(logits, images, labels) + weight * regulariser(analysis)

    return loss


def _first(context: MethodContext) -> float:
    """The λ at which a unit of average cost loses a γ of 1 in one trial, were it worth nothing."""
    settings, cost = context.settings, context.analysis.cost
    price = cost.marginal(cost.flops, cost.sizes)[cost.group_of].mean() / context.analysis.flops
    return float((1 - MOMENTUM) / (settings.lr * settings.trial_steps * price))


def next_weight(lines: list[Line], budget: float, first: float) -> float:
    """Between those that left too much and those that left too little, or beyond all of them."""
    weak = [line["lambda"] for line in lines if line["flops"] > budget]
    strong = [line["lambda"] for line in lines if line["flops"] <= budget]
    if weak and strong:
        return math.sqrt(max(weak) * min(strong))
    if not lines:
        return first
    return max(weak) * STRIDE if weak else min(strong) / STRIDE


def _scores(values: Tensor) -> np.ndarray:
    """γ by unit; units without one come first of all, so that they stay."""
    worths = values.double().cpu().numpy()
    return np.where(worths < 0, worths.max() + 1, worths)
