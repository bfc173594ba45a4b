"""The search loop: an explorer proposes candidates, workers evaluate them, a journal records them.

With W workers, candidate e is always proposed when the explorer knows exactly the fitness of the
candidates up to e − W. So the result depends on the seed and W, but not on the order of completion.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Sequence
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
from legr_cli.search.evolution import Candidate, Genes, Strategy
from legr_cli.search.history import PRICED
from legr_cli.search.lines import DIVERGENCE, fitness_of, mean_outcome, mean_seconds_in
from legr_cli.search.objectives import divergences_in
from legr_cli.search.workers import WorkerPool, is_killed_worker, is_lost_worker
from legr_cli.settings import MANY, Search

RETRIES = 3  # per candidate, if its worker is lost
UNREACHABLE: Line = {"accuracy": 0.0, "loss": None}  # a candidate that cannot reach a target


@dataclass(frozen=True)
class CandidatePlans:
    """The units that a candidate keeps, at each FLOPs target ζ̂."""

    key: str  # equal for candidates that keep the same units
    kept: list[Kept]
    flops: int  # of the smallest network


@dataclass
class Trial:
    """A candidate under evaluation."""

    candidate: Candidate
    plans: CandidatePlans | None  # None: ζ̂ cannot be reached
    line: Line | None = None  # its journal line, once its outcome is known
    future: "Future[list[Outcome]] | None" = None
    duplicate_of: "Trial | None" = None  # an earlier candidate that keeps the same units
    generation: int = 0  # of the workers that it was submitted to
    failures: int = 0  # how often its worker was lost
    best: Sequence[float] | None = None  # divergences of the best candidate when it was proposed


@dataclass(frozen=True)
class SearchProgress:
    """Progress of a search."""

    done: int  # number of candidates whose fitness is known
    total: int | None  # number of candidates; None: not known yet, with --minutes
    recorded: int  # number of `done` that were read from the journal
    cached: int  # number of `done` that keep the same units as an earlier candidate
    latest: Line
    best: Line
    seconds: float  # mean time of the candidates that were evaluated so far


@dataclass(frozen=True)
class SearchResult:
    """The best ranking that a search found."""

    ranking: Ranking
    best: Line
    first: Line  # candidate 0; for evolution, α = 1 and κ = 0
    cached: int


def search(
    analysis: Analysis,
    settings: Search,
    strategy: Strategy,
    pool: WorkerPool,
    journal: Journal,
    on_progress: Callable[[SearchProgress], None],
    warn: Callable[[str], None],
    unreachable: Line = UNREACHABLE,
) -> SearchResult:
    """Run a search to its end; candidates that the journal records are not evaluated again.

    `unreachable` has the scores of candidates that cannot reach a target.
    """
    run = _SearchRun(analysis, settings, strategy, pool, journal, warn, unreachable)
    recorded = len(journal.lines)
    pending: deque[Trial] = deque()
    while pending or not run.all_proposed:
        if pending and (len(pending) == settings.workers or run.all_proposed):
            line = run.finish(pending)
            done = pending.popleft().candidate.number + 1
            facts = min(recorded, done), run.cached, line, run.best, run.mean_seconds
            on_progress(SearchProgress(done, run.total, *facts))
        if not run.all_proposed:
            pending.append(run.begin())
    assert strategy.explorer.best is not None
    ranking = strategy.to_ranking(strategy.explorer.best[0].genes)
    return SearchResult(ranking, run.best, journal.lines[0], run.cached)


class _SearchRun:
    """The state of a search."""

    def __init__(
        self,
        analysis: Analysis,
        settings: Search,
        strategy: Strategy,
        pool: WorkerPool,
        journal: Journal,
        warn: Callable[[str], None],
        unreachable: Line,
    ) -> None:
        self.unreachable = unreachable
        self.analysis, self.settings = analysis, settings
        self.explorer, self.to_ranking = strategy.explorer, strategy.to_ranking
        self.pool, self.journal, self.warn = pool, journal, warn
        self.think_seconds = 0.0  # time that the explorer took since the last journal line
        self.seen: dict[str, Trial] = {}  # the first trial of each set of plans
        self.cached = self.told = 0

    @property
    def all_proposed(self) -> bool:
        """Whether every candidate has been proposed that is known to be part of the search."""
        total = self.total
        return self.explorer.asked == (PRICED if total is None else total)

    @property
    def total(self) -> int | None:
        """The number of candidates; with --minutes, it is recorded once the price is known."""
        if self.settings.minutes is None:
            return self.settings.candidates
        # not before the explorer knows it, or proposals would depend on the order of completion
        return None if self.told < PRICED else int(self.journal.lines[PRICED - 1]["planned"])

    @property
    def mean_seconds(self) -> float:
        """Mean time of the candidates that were evaluated so far."""
        return mean_seconds_in(self.journal.lines.values())

    @property
    def best(self) -> Line:
        """Journal line of the best candidate so far."""
        assert self.explorer.best is not None
        return self.journal.lines[self.explorer.best[0].number]

    def plans_of(self, candidate: Candidate) -> CandidatePlans | None:
        """Compute the units that a candidate keeps; None if a target cannot be reached."""
        try:
            kept = plans(self.analysis, self.to_ranking(candidate.genes), self.settings.cut)
        except BudgetError:
            if candidate.number == 0:
                raise  # other candidates would fail as well
            return None
        cost = self.analysis.cost
        flops = min(round(cost.total(cost.flops, cost.counts(plan))) for plan in kept)
        key = hashlib.sha256(np.packbits(kept).tobytes()).hexdigest()
        return CandidatePlans(key, kept, flops)

    def begin(self) -> Trial:
        """Ask for a candidate, and submit it unless its outcome is known already."""
        latest: CandidatePlans | None = None

        def is_new(drawn: Candidate) -> bool:
            nonlocal latest
            latest = self.plans_of(drawn)
            return latest is not None and latest.key not in self.seen

        start = time.perf_counter()
        candidate = self.explorer.ask(is_new)
        self.think_seconds += time.perf_counter() - start
        best = None if self.explorer.best is None else divergences_in(self.best)
        trial = Trial(candidate, latest, best=best)
        line = self.journal.lines.get(candidate.number)
        if line is not None:
            self._check_replay(trial, line)
            trial.line, self.think_seconds = line, 0.0
        elif trial.plans is None:
            self._record(trial, None)
        elif trial.plans.key in self.seen:
            trial.duplicate_of = self.seen[trial.plans.key]
        else:
            self._submit(trial)
        if trial.plans is not None:
            self.seen.setdefault(trial.plans.key, trial)
        return trial

    def finish(self, pending: "deque[Trial]") -> Line:
        """Wait for the first of these trials, and record others that complete meanwhile."""
        first = pending[0]
        while first.line is None:
            running = {trial.future for trial in pending if trial.future is not None}
            wait(running, return_when=FIRST_COMPLETED)
            for trial in pending:
                self._collect(trial)
        line = first.line
        self.cached += line["cached"]
        fitness = fitness_of(line, self.settings)
        start = time.perf_counter()
        self.explorer.tell(first.candidate, fitness)
        self.told += 1
        self.think_seconds += time.perf_counter() - start
        return line

    def _collect(self, trial: Trial) -> None:
        """Record a trial if its outcome has become known."""
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
            self._handle_failure(trial, error)

    def _handle_failure(self, trial: Trial, error: BaseException) -> None:
        """Retry if the worker was lost; otherwise raise."""
        number = trial.candidate.number
        if isinstance(error, torch.OutOfMemoryError):
            raise SearchError(
                "the device ran out of memory: start over with --force and fewer --workers "
                "or a smaller --batch-size"
            ) from error
        if isinstance(error, LegrError):
            raise error
        if not is_lost_worker(error) and not is_killed_worker(error):
            raise SearchError(
                f"candidate {number} failed: {type(error).__name__}: {first_line(error)}; earlier "
                "candidates are recorded: pass --resume to continue"
            ) from error
        trial.failures += 1
        if trial.failures > RETRIES or is_killed_worker(error):
            raise SearchError(
                f"candidate {number} lost its worker {RETRIES + 1} times: is there enough memory? "
                "Earlier candidates are recorded: pass --resume to continue"
            ) from error
        self.warn(f"lost a worker: retrying candidate {number}")
        self.pool.replace(trial.generation)
        self._submit(trial)

    def _submit(self, trial: Trial) -> None:
        """Submit a trial to the workers."""
        assert trial.plans is not None
        trial.generation = self.pool.generation
        try:
            trial.future = self.pool.submit(tuple(trial.plans.kept), trial.best)
        except Exception as error:
            self._handle_failure(trial, error)

    def _check_replay(self, trial: Trial, line: Line) -> None:
        """Raise unless the recorded candidate is the one that the seed produces."""
        genes = _genes_as_json(trial.candidate.genes)
        if {name: line.get(name) for name in genes} != genes:
            raise SearchError(
                f"candidate {trial.candidate.number} in the history differs from the one that the "
                "seed produces: the history was written by other versions of legr or NumPy, or "
                "edited; start over with --force"
            )

    def _record(self, trial: Trial, outcome: list[Outcome] | Line | None) -> None:
        """Record a trial with its outcome, or that of its duplicate; None: it has no plans."""
        values: dict[str, Any] = self.unreachable
        if isinstance(outcome, list):
            values = mean_outcome(outcome, trial.best)
        elif outcome is not None:
            keys = ("accuracy", "score", "figures", "loss", "each", *DIVERGENCE)
            values = {key: outcome[key] for key in keys if key in outcome}
        trial.line = {
            "candidate": trial.candidate.number,
            "parent": trial.candidate.parent,
            **values,
            "flops": None if trial.plans is None else trial.plans.flops,
            "cached": not isinstance(outcome, list) and outcome is not None,
            "plan": None if trial.plans is None else trial.plans.key,
            "think_seconds": round(self.think_seconds, 4),
            **_genes_as_json(trial.candidate.genes),
        }
        self.think_seconds = 0.0
        if self.settings.minutes is not None and trial.candidate.number == PRICED - 1:
            trial.line["planned"] = self._planned(trial.line)
        self.journal.add(trial.line)

    def _planned(self, latest: Line) -> int:
        """The number of candidates that fit into --minutes, from the price of the first."""
        assert self.settings.minutes is not None
        first = [*self.journal.lines.values(), latest]
        each = max(mean_seconds_in(first) or 1.0, 1e-3) / self.settings.workers
        return max(PRICED, min(MANY, int(self.settings.minutes * 60 / each)))


def _genes_as_json(genes: Genes) -> Line:
    """A candidate's genes as journals store them."""
    return {name: values.tolist() for name, values in genes.items()}
