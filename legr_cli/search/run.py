"""The search: candidates from an explorer, tried by a crew, each in the journal as it finishes.

Candidate e is asked for when the outcomes of all candidates up to e − W are told, never earlier and
never later, so a search depends on its seed and on W, not on who finishes first.
"""

import functools
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
from legr_cli.models.kept import kept_channels
from legr_cli.pruning import Analysis, plans
from legr_cli.ranking import Ranking, affine, level, spread
from legr_cli.search.evolution import Candidate, Evolution, Explorer, Fitness, Genes
from legr_cli.search.fitness import Outcome
from legr_cli.search.workers import WorkerPool, is_given_up, is_loss
from legr_cli.settings import Search
from legr_cli.training.loop import number

RETRIES = 3  # of one candidate whose worker died


@dataclass(frozen=True)
class Strategy:
    """How candidates are found, and what their numbers mean for the cut."""

    explorer: Explorer
    express: Callable[[Genes], Ranking]


def evolution_strategy(analysis: Analysis, settings: Search) -> Strategy:
    """LeGR: evolution of α and κ."""
    rng = np.random.default_rng(settings.seed)
    even = level(analysis.filters, analysis.cost.group_of)
    explorer = Evolution(spread(analysis.filters), even, settings, rng)
    return Strategy(explorer, functools.partial(affine, analysis.filters))


@dataclass(frozen=True)
class Plan:
    """What a candidate keeps at each ζ̂."""

    key: str
    kept: list[Kept]
    flops: int  # of the smallest


@dataclass
class Trial:
    """A candidate on its way."""

    candidate: Candidate
    plan: Plan | None  # None: no plan meets ζ̂
    line: Line | None = None  # what the journal says of it, once it is known
    future: "Future[list[Outcome]] | None" = None
    duplicate_of: "Trial | None" = None  # an earlier candidate that keeps the same channels
    shift: int = 0  # of the crew
    losses: int = 0


@dataclass(frozen=True)
class Progress:
    """What there is to see while a search goes on."""

    done: int
    recorded: int  # of these, found in the journal
    cached: int  # of these, known from an earlier candidate
    latest: Line
    best: Line


@dataclass(frozen=True)
class SearchResult:
    """What a search came to."""

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
    watch: Callable[[Progress], None],
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
            watch(Progress(done, min(recorded, done), run.cached, line, run.best))
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
        self.thought = 0.0  # seconds of the explorer since the last line
        self.seen: dict[str, Trial] = {}
        self.cached = 0

    @property
    def all_asked(self) -> bool:
        """Whether there is no candidate left to begin."""
        return self.explorer.asked == self.settings.candidates

    @property
    def best(self) -> Line:
        """The line of the best candidate so far."""
        assert self.explorer.best is not None
        return self.journal.lines[self.explorer.best[0].number]

    def plan(self, candidate: Candidate) -> Plan | None:
        """The channels that a candidate keeps."""
        try:
            kept = plans(self.analysis, self.express(candidate.genes), self.settings.cut)
        except BudgetError:
            if candidate.number == 0:
                raise  # nor will another reach it
            return None
        cost = self.analysis.cost
        flops = min(round(cost.of(cost.flops, cost.counts(each))) for each in kept)
        key = hashlib.sha256(np.packbits(kept).tobytes()).hexdigest()
        return Plan(key, kept, flops)

    def begin(self) -> Trial:
        """Ask for a candidate, and have it tried unless its outcome is known."""
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
        """Wait for the first of these; meanwhile, record whichever is done."""
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
        """Record a trial whose outcome has come."""
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
        """Try again if it was the worker's fault."""
        number = trial.candidate.number
        if isinstance(error, torch.OutOfMemoryError):
            raise SearchError(
                "the device has too little memory: begin anew with --force and fewer --workers "
                "or a smaller --batch-size"
            ) from error
        if isinstance(error, LegrError):
            raise error
        if not is_loss(error) and not is_given_up(error):
            raise SearchError(
                f"candidate {number} cannot be tried: {type(error).__name__}: {first_line(error)}; "
                "those before it are kept: --resume goes on"
            ) from error
        trial.losses += 1
        if trial.losses > RETRIES or is_given_up(error):
            raise SearchError(
                f"candidate {number} lost its worker {RETRIES + 1} times: is there enough memory? "
                "All that was found is kept: go on with --resume"
            ) from error
        self.say(f"a worker was lost: candidate {number} is tried again")
        self.pool.replace(trial.shift)
        self._submit(trial)

    def _submit(self, trial: Trial) -> None:
        """Hand a trial to the crew."""
        assert trial.plan is not None
        trial.shift = self.pool.shift
        try:
            kept = trial.plan.kept
            cuts = tuple(kept_channels(self.analysis.units, each) for each in kept)
            trial.future = self.pool.submit(cuts)
        except Exception as error:
            self._lose(trial, error)

    def _compare(self, trial: Trial, line: Line) -> None:
        """A recorded candidate must be the one that the seed gives."""
        genes = _plain(trial.candidate.genes)
        if {name: line.get(name) for name in genes} != genes:
            raise SearchError(
                f"the history's candidate {trial.candidate.number} is not what its seed gives: it "
                "was written with other versions or changed since; begin anew with --force"
            )

    def _record(self, trial: Trial, outcome: list[Outcome] | Line | None) -> None:
        """Put a trial into the journal: what came of it, or of its twin, or that it has no plan."""
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
            **_plain(trial.candidate.genes),
        }
        self.thought = 0.0
        self.journal.add(trial.line)


def _fitness(outcomes: list[Outcome]) -> Line:
    """What a candidate reached on average and, of several shares, at each; and how long it took."""
    accuracies = [outcome.accuracy for outcome in outcomes]
    loss = sum(outcome.loss for outcome in outcomes) / len(outcomes)
    line: Line = {"accuracy": sum(accuracies) / len(accuracies), "loss": number(loss)}
    if len(accuracies) > 1:
        line["each"] = accuracies
    for part in ("seconds", "adapt_seconds", "measure_seconds"):
        line[part] = round(sum(getattr(outcome, part) for outcome in outcomes), 4)
    return line


def _plain(genes: Genes) -> Line:
    """A candidate's numbers as the journal has them."""
    return {name: numbers.tolist() for name, numbers in genes.items()}
