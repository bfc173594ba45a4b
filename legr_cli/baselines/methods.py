"""The table of methods, and how search-based methods run."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from legr_cli.baselines.context import DAMAGED_ADVICE, Method, MethodContext, MethodResult
from legr_cli.baselines.effort import Effort
from legr_cli.baselines.fisher import fisher
from legr_cli.baselines.gradual import prune_gradually
from legr_cli.baselines.morphnet import morphnet
from legr_cli.baselines.taylor import TAYLOR
from legr_cli.errors import SettingError
from legr_cli.journal import journal, read_header
from legr_cli.pruning import resolve_ranking
from legr_cli.ranking import Ranking
from legr_cli.search.fitness import adaptation, search_settings, with_steps
from legr_cli.search.history import HISTORY, history_of
from legr_cli.search.measured import with_metric
from legr_cli.search.run import SearchProgress
from legr_cli.search.setup import SearchSetup
from legr_cli.settings import Compare, Search, given
from legr_cli.targets import Target, falling, percents, spanning
from legr_cli.training.scores import shown


@dataclass(frozen=True)
class MethodEntry:
    """An entry of the table of methods."""

    run: Method
    per_target: bool = False  # whether it starts over for each target, with a ranking for each


def parse_methods(text: str) -> tuple[str, ...]:
    """Parse `legr,uniform`, or `all`."""
    return check_methods(METHODS if text == "all" else [part.strip() for part in text.split(",")])


def check_methods(names: Iterable[str]) -> tuple[str, ...]:
    """Check that all of these methods exist."""
    names = tuple(names)
    for name in names:
        if name not in METHODS:
            raise SettingError(f"--methods {name}: expected all, or some of {', '.join(METHODS)}")
    return names


def _without_search(
    ranking: str | None, context: MethodContext, _: list[Target], todo: set[Target]
) -> Iterator[MethodResult]:
    """Use plain norms or uniform pruning, which cost nothing."""
    resolved = resolve_ranking(context.analysis, ranking)
    for target in falling(todo):
        yield MethodResult(target, context.analysis, resolved, Effort())


def _search_once(
    name: str,
    explorer: str | None,
    context: MethodContext,
    targets: list[Target],
    todo: set[Target],
) -> Iterator[MethodResult]:
    """Search once, by default at the lowest target; the effort counts for the highest target."""
    if todo:
        flops = context.settings.search_flops or _spanned(context.settings, targets)
        ranking, effort = _search(name, explorer, context, flops, None)
        for target in falling(todo):
            spent = effort if target == targets[0] else Effort()
            yield MethodResult(target, context.analysis, ranking, spent)


def _spanned(settings: Compare, targets: list[Target]) -> tuple[float, ...]:
    """The shares at which to learn: with repair, all targets are served, else the lowest is."""
    lowest, highest = targets[-1].value, targets[0].value
    whole = adaptation(settings.fitness or "").ranks_by_divergence and lowest < highest
    return spanning(lowest, highest) if whole else (lowest,)


def search_of(
    settings: Compare, flops: tuple[float, ...], seed: int, explorer: str | None = None
) -> Search:
    """The settings of a search at these shares; other explorers than LeGR's use squared norms."""
    shared = {
        name: getattr(settings, name)
        for name in ("sigma", "steps", "lr", "min_keep", "align", "workers", "batch_size")
    }
    shared |= given(candidates=settings.candidates, val_images=settings.val_images)
    paper = {"explorer": explorer, "metric": Search.metric, "reject_above": 0.0} if explorer else {}
    return with_steps(
        search_settings(
            settings.fitness or "finetune",
            **{**shared, **paper},
            flops=flops,
            amp=settings.training.amp,
            seed=seed,
        )
    )


def _search_per_target(
    name: str, explorer: str, context: MethodContext, _: list[Target], todo: set[Target]
) -> Iterator[MethodResult]:
    """Search separately for each target."""
    for target in falling(todo):
        ranking, effort = _search(name, explorer, context, (target.value,), target)
        yield MethodResult(target, context.analysis, ranking, effort)


def _search(
    name: str,
    explorer: str | None,
    context: MethodContext,
    flops: tuple[float, ...],
    target: Target | None,
) -> tuple[Ranking, Effort]:
    """Run or resume a search; return its ranking and its effort.

    Without an explorer, the search is that of `legr learn`. `target` is None if the ranking is for
    all targets.
    """
    settings = search_of(context.settings, flops, context.seed, explorer)
    history = history_of(context.ranking_file(name, target))
    kind = replace(HISTORY, anew=DAMAGED_ADVICE)
    started = time.perf_counter()
    known = read_header(history, kind)  # of an interrupted search, which has measured already
    analysis = with_metric(context.analysis, context.data, settings, known)
    measuring = time.perf_counter() - started
    inputs = analysis, context.data, settings, context.device
    setup = SearchSetup(*inputs, name, context.task)

    def on_progress(state: SearchProgress) -> None:
        done = f"candidate {state.done}/{settings.candidates} at {percents(flops)}"
        context.report(f"{done}, best {shown(state.best)}")

    header = {**setup.header, "dense": context.dense}
    with journal(history, kind, header, resume=True) as book:
        result = setup.run(book, on_progress, context.report)
        evaluated = [line for line in book.lines.values() if "seconds" in line]
        think_seconds = sum(line.get("think_seconds", 0.0) for line in book.lines.values())
    # a candidate is adapted and scored at all shares, unless it was rejected
    times = sum(line.get("measured", len(flops)) for line in evaluated)
    effort = Effort(
        sum(line["seconds"] for line in evaluated) + think_seconds + measuring,
        times * (settings.steps or 0) * adaptation(settings.fitness).trains,
        round(times * setup.candidate_images() / len(flops)),
    )
    return setup.ranking(result, context.dense, history.name), effort


def _fisher(
    context: MethodContext, targets: list[Target], todo: set[Target]
) -> Iterator[MethodResult]:
    """FisherPruning with λ from the settings."""
    criterion = fisher(context.settings.fisher_weight)
    return prune_gradually("fisher", criterion, context, targets, todo)


METHODS = {
    "legr": MethodEntry(partial(_search_once, "legr", None)),
    "norm": MethodEntry(partial(_without_search, None)),
    "uniform": MethodEntry(partial(_without_search, "uniform")),
    "random": MethodEntry(partial(_search_once, "random", "random")),
    "legr-ddpg": MethodEntry(partial(_search_once, "legr-ddpg", "ddpg")),
    "amc": MethodEntry(partial(_search_per_target, "amc", "amc"), per_target=True),
    "taylor": MethodEntry(partial(prune_gradually, "taylor", TAYLOR)),
    "fisher": MethodEntry(_fisher),
    "morphnet": MethodEntry(morphnet, per_target=True),
}
