"""The search loop: an explorer proposes candidates, workers evaluate them, a journal records them.

With W workers, candidate e is proposed when the explorer knows the fitness of all candidates up to
e − W, never earlier and never later, so a search depends on its seed and on W, not on who finishes
first.
"""

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from legr_cli.channels.units import Kept
from legr_cli.errors import BudgetError, LegrError, SearchError, first_line
from legr_cli.journal import Journal, Line
from legr_cli.pruning import Analysis, plans
from legr_cli.ranking import Ranking
from legr_cli.search.evaluator import Outcome
from legr_cli.search.evolution import Candidate, Fitness, Genes, Strategy
from legr_cli.search.workers import WorkerPool, is_given_up, is_loss
from legr_cli.settings import Search
from legr_cli.training.scores import finite_or_none

RETRIES = 3  # for a candidate whose worker died


@dataclass(frozen=True)
class Plan:
    """The units that a candidate keeps at each share ζ̂ of the FLOPs."""

    key: str
    kept: list[Kept]
    flops: int  # of the smallest network


@dataclass
class Trial:
    """A candidate that is being evaluated."""

    candidate: Candidate
    plan: Plan | None  # None: no plan reaches ζ̂
    line: Line | None = None  # its line of the journal, once it is known
    future: "Future[list[Outcome]] | None" = None
    duplicate_of: "Trial | None" = None  # an earlier candidate that keeps the same channels
    generation: int = 0  # of the workers
    losses: int = 0


@dataclass(frozen=True)
class SearchProgress:
    """Where a search stands."""

    done: int
    recorded: int  # of these, read from the journal
    cached: int  # of these, equal to an earlier candidate
    latest: Line
    best: Line


@dataclass(frozen=True)
class SearchResult:
    """The best ranking that a search found."""

    ranking: Ranking
    best: Line
    first: Line  # for evolution: α = 1, κ = 0
    cached: int


def search(
    analysis: Analysis,
    settings: Search,
    strategy: Strategy,
    pool: WorkerPool,
    journal: Journal,
    watch: Callable[[SearchProgress], None],
    say: Callable[[str], None],
) -> SearchResult:
    """Run a search to its end, from wherever the journal stands."""
    run = _Run(analysis, settings, strategy, pool, journal, say)
    recorded = len(journal.lines)
    waiting: deque[Trial] = deque()
    for _ in range(settings.candidates + settings.workers):
        if waiting and (len(waiting) == settings.workers or run.all_asked):
            line = run.finish(waiting)
            done = waiting.popleft().candidate.number + 1
            watch(SearchProgress(done, min(recorded, done), run.cached, line, run.best))
        if not run.all_asked:
            waiting.append(run.begin())
    assert strategy.explorer.best is not None
    ranking = strategy.express(strategy.explorer.best[0].genes)
    return SearchResult(ranking, run.best, journal.lines[0], run.cached)


class _Run:
    """The state of a search."""

    def __init__(
        self,
        analysis: Analysis,
        settings: Search,
        strategy: Strategy,
        pool: WorkerPool,
        journal: Journal,
        say: Callable[[str], None],
    ) -> None:
        self.analysis, self.settings = analysis, settings
        self.explorer, self.express = strategy.explorer, strategy.express
        self.pool, self.journal, self.say = pool, journal, say
        self.thought = 0.0  # seconds that the explorer took since the last line
        self.seen: dict[str, Trial] = {}
        self.cached = 0

    @property
    def all_asked(self) -> bool:
        """Whether every candidate was proposed."""
        return self.explorer.asked == self.settings.candidates

    @property
    def best(self) -> Line:
        """Journal line of the best candidate so far."""
        assert self.explorer.best is not None
        return self.journal.lines[self.explorer.best[0].number]

    def plan(self, candidate: Candidate) -> Plan | None:
        """The units that a candidate keeps."""
        try:
            kept = plans(self.analysis, self.express(candidate.genes), self.settings.cut)
        except BudgetError:
            if candidate.number == 0:
                raise  # no other candidate would reach it
            return None
        cost = self.analysis.cost
        flops = min(round(cost.total(cost.flops, cost.counts(each))) for each in kept)
        key = hashlib.sha256(np.packbits(kept).tobytes()).hexdigest()
        return Plan(key, kept, flops)

    def begin(self) -> Trial:
        """Get a candidate, and have it evaluated unless its outcome is known."""
        plan: Plan | None = None

        def is_new(drawn: Candidate) -> bool:
            nonlocal plan
            plan = self.plan(drawn)
            return plan is not None and plan.key not in self.seen

        begun = time.perf_counter()
        candidate = self.explorer.ask(is_new)
        self.thought += time.perf_counter() - begun
        trial = Trial(candidate, plan)
        line = self.journal.lines.get(candidate.number)
        if line is not None:
            self._compare(trial, line)
            trial.line, self.thought = line, 0.0
        elif trial.plan is None:
            self._record(trial, None)
        elif trial.plan.key in self.seen:
            trial.duplicate_of = self.seen[trial.plan.key]
        else:
            self._submit(trial)
        if trial.plan is not None:
            self.seen.setdefault(trial.plan.key, trial)
        return trial

    def finish(self, waiting: "deque[Trial]") -> Line:
        """Wait for the first of these trials, recording others as they finish."""
        first = waiting[0]
        while first.line is None:
            running = {trial.future for trial in waiting if trial.future is not None}
            wait(running, return_when=FIRST_COMPLETED)
            for trial in waiting:
                self._collect(trial)
        line = first.line
        self.cached += line["cached"]
        fitness = Fitness(line["accuracy"], -math.inf if line["loss"] is None else -line["loss"])
        begun = time.perf_counter()
        self.explorer.tell(first.candidate, fitness)
        self.thought += time.perf_counter() - begun
        return line

    def _collect(self, trial: Trial) -> None:
        """Record a trial if its outcome is known by now."""
        if (
            trial.line is None
            and trial.duplicate_of is not None
            and trial.duplicate_of.line is not None
        ):
            self._record(trial, trial.duplicate_of.line)
        if trial.future is None or not trial.future.done():
            return
        future, trial.future = trial.future, None
        try:
            self._record(trial, future.result())
        except (Exception, SystemExit) as error:
            self._lose(trial, error)

    def _lose(self, trial: Trial, error: BaseException) -> None:
        """Retry if the worker was lost; otherwise raise."""
        number = trial.candidate.number
        if isinstance(error, torch.OutOfMemoryError):
            raise SearchError(
                "the device ran out of memory: start over with --force and fewer --workers "
                "or a smaller --batch-size"
            ) from error
        if isinstance(error, LegrError):
            raise error
        if not is_loss(error) and not is_given_up(error):
            raise SearchError(
                f"candidate {number} failed: {type(error).__name__}: {first_line(error)}; earlier "
                "candidates are kept: continue with --resume"
            ) from error
        trial.losses += 1
        if trial.losses > RETRIES or is_given_up(error):
            raise SearchError(
                f"candidate {number} lost its worker {RETRIES + 1} times: is there enough memory? "
                "Earlier candidates are kept: continue with --resume"
            ) from error
        self.say(f"lost a worker: retrying candidate {number}")
        self.pool.replace(trial.generation)
        self._submit(trial)

    def _submit(self, trial: Trial) -> None:
        """Hand a trial to the workers."""
        assert trial.plan is not None
        trial.generation = self.pool.generation
        try:
            trial.future = self.pool.submit(tuple(trial.plan.kept))
        except Exception as error:
            self._lose(trial, error)

    def _compare(self, trial: Trial, line: Line) -> None:
        """Check that a recorded candidate is the one that the seed gives."""
        genes = _as_json(trial.candidate.genes)
        if {name: line.get(name) for name in genes} != genes:
            raise SearchError(
                f"candidate {trial.candidate.number} of the history is not what the seed gives: it "
                "was written by other versions, or edited; start over with --force"
            )

    def _record(self, trial: Trial, outcome: list[Outcome] | Line | None) -> None:
        """Record a trial: its outcome, that of an equal candidate, or that it has no plan."""
        values: dict[str, Any] = {"accuracy": 0.0, "loss": None}
        if isinstance(outcome, list):
            values = _fitness(outcome)
        elif outcome is not None:
            values = {key: outcome[key] for key in ("accuracy", "loss", "each") if key in outcome}
        trial.line = {
            "candidate": trial.candidate.number,
            "parent": trial.candidate.parent,
            **values,
            "flops": None if trial.plan is None else trial.plan.flops,
            "cached": not isinstance(outcome, list) and outcome is not None,
            "plan": None if trial.plan is None else trial.plan.key,
            "think_seconds": round(self.thought, 4),
            **_as_json(trial.candidate.genes),
        }
        self.thought = 0.0
        self.journal.add(trial.line)


def _fitness(outcomes: list[Outcome]) -> Line:
    """Mean over all shares, each share if there are several, and how long it took."""
    accuracies = [outcome.accuracy for outcome in outcomes]
    loss = sum(outcome.loss for outcome in outcomes) / len(outcomes)
    line: Line = {"accuracy": sum(accuracies) / len(accuracies), "loss": finite_or_none(loss)}
    if len(accuracies) > 1:
        line["each"] = accuracies
    for part in ("seconds", "adapt_seconds", "measure_seconds"):
        line[part] = round(sum(getattr(outcome, part) for outcome in outcomes), 4)
    return line


def _as_json(genes: Genes) -> Line:
    """A candidate's numbers as JSON has them."""
    return {name: numbers.tolist() for name, numbers in genes.items()}
