"""Gradual pruning: train for some steps, score the units, remove the worst ones, and repeat.

Removed units are masked but not cut off, so every step costs as much as on the dense network. The
order of removal is a ranking of all units, and every target on the way is a result.
"""

import copy
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legr_cli.baselines.context import DAMAGED_ADVICE, MethodContext, MethodResult
from legr_cli.baselines.effort import Effort
from legr_cli.baselines.probe import Criterion, GatedNetwork
from legr_cli.cut import Blocks, arrange
from legr_cli.data.batches import Serving, endless, shuffled
from legr_cli.errors import BudgetError, ModelError, TrainingError
from legr_cli.journal import JournalFormat, Line
from legr_cli.pruning import Analysis, analyze
from legr_cli.targets import Target
from legr_cli.training.devices import seeded
from legr_cli.training.loop import StepCallback, Trainer, sgd, task_loss, train
from legr_cli.training.resume import RunFiles, open_record
from legr_cli.training.run import derived_seed
from legr_cli.training.tasks import Reference, with_targets


def _is_sound(line: Line, _settings: Line) -> bool:
    """Whether the line of a round is valid."""
    counts = (line.get(key) for key in ("round", "steps", "images"))
    numbers = (line.get(key) for key in ("flops", "seconds"))
    return all(type(n) is int and n >= 0 for n in counts) and all(
        isinstance(n, int | float) and 0 <= n < math.inf for n in numbers
    )


ROUNDS = JournalFormat(
    format="legr-rounds",
    work="comparison",
    command="legr compare",
    key="round",
    is_header=lambda _: True,
    is_sound=_is_sound,
    error=TrainingError,
    anew=DAMAGED_ADVICE,
)


def train_round(
    context: MethodContext,
    trainer: Trainer,
    steps: int,
    number: int,
    reference: Reference | None,
    on_step: StepCallback | None = None,
) -> None:
    """Train for some steps; random numbers depend on the seed and the number of the round.

    `reference` gives the targets of images without labels.
    """
    seed, size = derived_seed(context.seed, number), context.settings.batch_size
    generator = torch.Generator().manual_seed(seed)
    serving = Serving(context.data.feed, size, context.torch_device)
    endlessly = endless(lambda: shuffled(context.data.train, serving, generator))
    batches = with_targets(context.task, itertools.islice(endlessly, steps), reference)
    with seeded(context.torch_device, seed):
        train(trainer, batches, on_step=on_step)


def prune_gradually(
    method: str,
    criterion: Criterion,
    context: MethodContext,
    targets: list[Target],
    todo: set[Target],
) -> Iterator[MethodResult]:
    """Prune in rounds until the lowest target is reached; yield a result for every target."""
    if not todo:
        return
    analysis, settings = copy_analysis(context.analysis), context.settings
    pruning = _GradualPruning(context, analysis, criterion)
    names = ("round_units", "round_steps", "round_lr", "fisher_weight")
    own_settings = {name: getattr(settings, name) for name in names}
    remaining, effort = list(targets), Effort()
    files = RunFiles(context.record_files(method), resume=True, force=False, kind=ROUNDS)
    header = context.header(method, **own_settings)
    with open_record(files, header, pruning.tensors()) as record:
        # Skip the targets that recorded rounds have reached: their results exist already.
        for line in record.book.lines.values():
            effort += Effort.from_line(line)
            while remaining and line["flops"] <= remaining[0].value * analysis.flops:
                if remaining.pop(0) in todo:
                    raise TrainingError(
                        f"{files.epochs} is ahead of compare.jsonl: {DAMAGED_ADVICE}"
                    )
                effort = Effort()
        while remaining:
            number = len(record.book.lines) + 1
            line = pruning.round(number)
            effort += Effort.from_line(line)
            share = line["flops"] / analysis.flops
            context.report(f"round {number}, {share:.1%} of the FLOPs left")
            while remaining and share <= remaining[0].value:
                target = remaining.pop(0)
                if target in todo:
                    ranking = context.ranking(method, pruning.order, **own_settings)
                    yield MethodResult(target, analysis, ranking, effort)
                effort = Effort()
            record.add(line, pruning.tensors())
    files.state.unlink(missing_ok=True)


def copy_analysis(analysis: Analysis) -> Analysis:
    """The same analysis for a copy of the network, whose weights may be changed."""
    network = replace(analysis.network, model=copy.deepcopy(analysis.network.model))
    return replace(analyze(network), sha256=analysis.sha256)


class _GradualPruning:
    """The state of gradual pruning."""

    def __init__(self, context: MethodContext, analysis: Analysis, criterion: Criterion) -> None:
        self.context, self.analysis, self.criterion = context, analysis, criterion
        self.reference = context.reference
        self.model = GatedNetwork(analysis.units).to(context.torch_device)
        self.model.requires_grad_(True)
        count = analysis.units.count
        self.removed_at = torch.full((count,), -1)  # position in the order of removal; -1: kept
        self.scores = np.zeros(count)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that the next round depends on."""
        return {**self.model.traced.state_dict(), "legr.gone": self.removed_at}

    @property
    def kept(self) -> np.ndarray:
        """Mask of the units that have not been removed."""
        return (self.removed_at < 0).numpy()

    @property
    def order(self) -> np.ndarray:
        """Scores of a ranking: units removed earlier are lower, kept ones follow by their score."""
        rank = np.argsort(np.argsort(self.scores, kind="stable"), kind="stable")
        return np.where(self.kept, len(rank) + rank, self.removed_at.numpy()).astype(float)

    def round(self, number: int) -> Line:
        """Train, score and remove units; return the round's journal line."""
        start, settings, cost = time.perf_counter(), self.context.settings, self.analysis.cost
        self.scores = self._train_and_score(number)
        before = self.kept.sum()
        for _ in range(settings.round_units):
            for unit in self._worst_block():
                self.removed_at[unit] = int(self.removed_at.max()) + 1
        if self.kept.sum() == before:
            share = cost.total(cost.flops, cost.counts(self.kept)) / self.analysis.flops
            raise BudgetError(f"cannot prune below {share:.1%} of the FLOPs")
        images = settings.round_steps * settings.batch_size
        return {
            "round": number,
            "flops": cost.total(cost.flops, cost.counts(self.kept)),
            "seconds": round(time.perf_counter() - start, 4),
            "steps": settings.round_steps,
            "images": images,
        }

    def _train_and_score(self, number: int) -> np.ndarray:
        """Train for some steps, and score units by the gradients of the same steps."""
        context, cost, model = self.context, self.analysis.cost, self.model
        model.kept = self.kept
        sums: list[Tensor] = []
        images = 0

        def on_step(_step: int, _outputs: Any, _targets: Any, _loss: Tensor) -> None:
            nonlocal images
            count = self.analysis.units.count
            sums.append(self.criterion.accumulate(model.gradients(), model.gate_units, count))
            images += model.images

        settings = context.settings
        trainer = Trainer(model, sgd(model, settings.round_lr), task_loss(context.task))
        train_round(context, trainer, settings.round_steps, number, self.reference, on_step)
        mean = torch.stack(sums).double().sum(0).cpu().numpy() / images
        if not np.isfinite(mean).all():
            raise ModelError("the loss became NaN or infinite: lower --round-lr")
        # the FLOPs that removing one more unit of each group saves
        one_less = np.full(len(cost.sizes), -1)
        saved = -cost.added(cost.flops, cost.counts(self.kept), one_less) / self.analysis.flops
        return self.criterion.score(mean, model.gate_units, saved[cost.group_of])

    def _worst_block(self) -> np.ndarray:
        """Units of the block with the lowest mean score, the last of its group; empty if none."""
        cost, kept = self.analysis.cost, self.kept
        counts, scores = cost.counts(kept), np.where(kept, self.scores, -np.inf)
        settings = self.context.settings
        blocks = arrange(self.analysis.units, cost, scores, settings.min_keep, settings.align)
        groups = zip(blocks.ranked, counts, _last_blocks(blocks, counts), strict=True)
        candidates = [ranked[first:count] for ranked, count, first in groups if first >= 0]
        none = np.array([], int)
        return min(candidates, key=lambda units: float(self.scores[units].mean()), default=none)


def _last_blocks(blocks: Blocks, counts: np.ndarray) -> np.ndarray:
    """For each group, the index of its last block's first unit; -1 if that block is protected."""
    index = -(-counts // blocks.step) - 1  # of the last block: ⌈counts / step⌉ − 1
    return np.where(index >= blocks.protected, index * blocks.step, -1)
