"""Gradual pruning: some steps of training, scores from them, the worst units go; and again.

What is removed is silenced and not yet cut off, so a step costs what it costs on the dense network.
The order in which units went is a ranking of all of them, and every budget on the way is a result.
"""

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from legr_cli.baselines.context import ASIDE, Level, MethodContext
from legr_cli.baselines.effort import Effort
from legr_cli.baselines.probe import Criterion, Probed
from legr_cli.cut import Blocks, arrange
from legr_cli.data.batches import Serving, endless, shuffled
from legr_cli.errors import BudgetError, ModelError, TrainingError
from legr_cli.journal import JournalFormat, Line
from legr_cli.pruning import Analysis, analyze
from legr_cli.targets import Target
from legr_cli.training.devices import seeded
from legr_cli.training.loop import Trainer, sgd, train
from legr_cli.training.resume import RunFiles, open_record
from legr_cli.training.run import derived_seed


def _is_sound(line: Line, _settings: Line) -> bool:
    """Whether a round's line has all that is read from it."""
    counts = (line.get(key) for key in ("round", "steps", "images"))
    numbers = (line.get(key) for key in ("flops", "seconds"))
    return all(type(n) is int and n >= 0 for n in counts) and all(
        isinstance(n, int | float) and 0 <= n < math.inf for n in numbers
    )


Watch = Callable[[int, Tensor, Tensor, Tensor], None]  # a step, its logits, labels and loss

ROUNDS = JournalFormat(
    format="legr-rounds",
    work="comparison",
    command="legr compare",
    key="round",
    is_header=lambda _: True,
    is_sound=_is_sound,
    error=TrainingError,
    anew=ASIDE,
)


def learn(
    context: MethodContext, trainer: Trainer, steps: int, number: int, watch: Watch | None = None
) -> None:
    """So many steps; what is drawn for them depends on the seed and on the number of the round."""
    seed, size = derived_seed(context.seed, number), context.settings.batch_size
    generator = torch.Generator().manual_seed(seed)
    serving = Serving(context.data.feed, size, context.where)
    batches = endless(lambda: shuffled(context.data.train, serving, generator))
    with seeded(context.where, seed):
        train(trainer, itertools.islice(batches, steps), on_step=watch)


def prune_gradually(
    method: str,
    criterion: Criterion,
    context: MethodContext,
    targets: list[Target],
    todo: set[Target],
) -> Iterator[Level]:
    """Train, score and remove until the lowest target is reached; every target is a level."""
    if not todo:
        return
    analysis, settings = copy_analysis(context.analysis), context.settings
    walk = _Walk(context, analysis, method, criterion)
    names = ("round_units", "round_steps", "round_lr", "fisher_weight")
    about = {name: getattr(settings, name) for name in names}
    waiting, since = list(targets), Effort()
    files = RunFiles(context.work(method), resume=True, force=False, kind=ROUNDS)
    with open_record(files, context.header(method, **about), walk.tensors()) as record:
        for line in record.book.lines.values():  # levels among them were cut before
            since += Effort.from_line(line)
            while waiting and line["flops"] <= waiting[0].value * analysis.flops:
                if waiting.pop(0) in todo:
                    raise TrainingError(f"{files.epochs} is ahead of compare.jsonl: {ASIDE}")
                since = Effort()
        while waiting:
            number = len(record.book.lines) + 1
            line = walk.round(number)
            since += Effort.from_line(line)
            share = line["flops"] / analysis.flops
            context.tell(f"round {number}, {share:.1%} of the FLOPs are left")
            while waiting and share <= waiting[0].value:
                target = waiting.pop(0)
                if target in todo:
                    ranking = context.ranking(method, walk.order, **about)
                    yield Level(target, analysis, ranking, since)
                since = Effort()
            record.add(line, walk.tensors())
    files.state.unlink(missing_ok=True)


def copy_analysis(analysis: Analysis) -> Analysis:
    """The same study of a copy, whose weights may change."""
    network = replace(analysis.network, model=copy.deepcopy(analysis.network.model))
    return replace(analyze(network), sha256=analysis.sha256)


class _Walk:
    """The network on its way down."""

    def __init__(
        self, context: MethodContext, analysis: Analysis, method: str, criterion: Criterion
    ) -> None:
        self.context, self.analysis, self.method, self.criterion = (
            context,
            analysis,
            method,
            criterion,
        )
        self.model = Probed(analysis.units).to(context.where)
        self.model.requires_grad_(True)
        self.gone = torch.full(
            (analysis.units.count,), -1
        )  # when a unit went: 0, 1, …; -1: not yet
        self.scores = np.zeros(analysis.units.count)

    def tensors(self) -> dict[str, Tensor]:
        """All that the next round depends on."""
        return {**self.model.traced.state_dict(), "legr.gone": self.gone}

    @property
    def kept(self) -> np.ndarray:
        """Units that are here."""
        return (self.gone < 0).numpy()

    @property
    def order(self) -> np.ndarray:
        """What went first is worth least; what is here comes after it, by its score."""
        rank = np.argsort(np.argsort(self.scores, kind="stable"), kind="stable")
        return np.where(self.kept, len(rank) + rank, self.gone.numpy()).astype(float)

    def round(self, number: int) -> Line:
        """Train, score, remove."""
        begun, settings, cost = time.perf_counter(), self.context.settings, self.analysis.cost
        self.scores = self._scored(number)
        here = self.kept.sum()
        for _ in range(settings.round_units):
            for unit in self._worst():
                self.gone[unit] = int(self.gone.max()) + 1
        if self.kept.sum() == here:
            share = cost.total(cost.flops, cost.counts(self.kept)) / self.analysis.flops
            raise BudgetError(f"it cannot go below {share:.1%} of the FLOPs")
        images = settings.round_steps * settings.batch_size
        return {
            "round": number,
            "flops": cost.total(cost.flops, cost.counts(self.kept)),
            "seconds": round(time.perf_counter() - begun, 4),
            "steps": settings.round_steps,
            "images": images,
        }

    def _scored(self, number: int) -> np.ndarray:
        """Learn from a few batches, and take scores from the very gradients of that."""
        context, cost, model = self.context, self.analysis.cost, self.model
        model.kept = self.kept
        sums: list[Tensor] = []
        seen = 0

        def after(_step: int, _logits: Tensor, labels: Tensor, _loss: Tensor) -> None:
            nonlocal seen
            gradients = model.gradients(len(labels))
            sums.append(self.criterion.take(gradients, model.reads, self.analysis.units.count))
            seen += len(labels)

        trainer = Trainer(model, sgd(model, context.settings.round_lr))
        learn(context, trainer, context.settings.round_steps, number, after)
        mean = torch.stack(sums).double().sum(0).cpu().numpy() / seen
        if not np.isfinite(mean).all():
            raise ModelError("the loss is no number any more: lower --round-lr")
        one_less = np.full(len(cost.sizes), -1)
        saved = -cost.added(cost.flops, cost.counts(self.kept), one_less) / self.analysis.flops
        return self.criterion.score(mean, model.reads, saved[cost.group_of])

    def _worst(self) -> np.ndarray:
        """The units of the worst block of all groups that may give one away; or none."""
        cost, kept = self.analysis.cost, self.kept
        counts, here = cost.counts(kept), np.where(kept, self.scores, -np.inf)
        settings = self.context.settings
        blocks = arrange(self.analysis.units, cost, here, settings.min_keep, settings.align)
        lasts = zip(blocks.ranked, counts, _last_block(blocks, counts), strict=True)
        candidates = [ranked[first:count] for ranked, count, first in lasts if first >= 0]
        none = np.array([], int)
        return min(candidates, key=lambda units: float(self.scores[units].mean()), default=none)


def _last_block(blocks: Blocks, counts: np.ndarray) -> np.ndarray:
    """Where the last block of each group begins; -1 where it is protected."""
    before = -(-counts // blocks.step) - 1
    return np.where(before >= blocks.protected, before * blocks.step, -1)
