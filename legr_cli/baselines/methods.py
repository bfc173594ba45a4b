"""The table of methods, and how each is run."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from legr_cli.baselines.context import ASIDE, Level, Method, MethodContext
from legr_cli.baselines.effort import Effort
from legr_cli.baselines.fisher import fisher
from legr_cli.baselines.gradual import prune_gradually
from legr_cli.baselines.morphnet import morphnet
from legr_cli.baselines.taylor import TAYLOR
from legr_cli.errors import SettingError
from legr_cli.journal import journal
from legr_cli.pruning import resolve_ranking
from legr_cli.ranking import Ranking
from legr_cli.search.fitness import adaptation, with_steps
from legr_cli.search.history import HISTORY, history_of
from legr_cli.search.run import SearchProgress, search
from legr_cli.search.setup import SearchSetup
from legr_cli.targets import Target, falling, percents


@dataclass(frozen=True)
class Entry:
    """A method of the table."""

    run: Method
    each: bool = False  # it starts anew for each target


def parse_methods(text: str) -> tuple[str, ...]:
    """`legr,uniform`, or `all`."""
    return check_methods(METHODS if text == "all" else [part.strip() for part in text.split(",")])


def check_methods(names: Iterable[str]) -> tuple[str, ...]:
    """Names of methods, all of them known."""
    names = tuple(names)
    for name in names:
        if name not in METHODS:
            raise SettingError(f"--methods {name}: expected all, or some of {', '.join(METHODS)}")
    return names


def _unsearched(
    name: str | None, context: MethodContext, _: list[Target], todo: set[Target]
) -> Iterator[Level]:
    """Norms alone: nothing to learn, nothing to pay."""
    for target in falling(todo):
        yield Level(target, context.analysis, resolve_ranking(context.analysis, name), Effort())


def _once(
    name: str,
    explorer: str,
    context: MethodContext,
    targets: list[Target],
    todo: set[Target],
) -> Iterator[Level]:
    """One search, as a rule at the lowest target, for all of them; the first one pays for it."""
    if todo:
        at = context.settings.search_flops or (targets[-1].value,)
        ranking, effort = _searched(name, explorer, context, at, None)
        for target in falling(todo):
            yield Level(
                target, context.analysis, ranking, effort if target == targets[0] else Effort()
            )


def _each(
    name: str, explorer: str, context: MethodContext, _: list[Target], todo: set[Target]
) -> Iterator[Level]:
    """A search for each target."""
    for target in falling(todo):
        yield Level(
            target, context.analysis, *_searched(name, explorer, context, (target.value,), target)
        )


def _searched(
    name: str,
    explorer: str,
    context: MethodContext,
    at: tuple[float, ...],
    only: Target | None,
) -> tuple[Ranking, Effort]:
    """A search on record, what it found and what it took."""
    settings = with_steps(context.settings.search(at, context.seed))
    setup = SearchSetup(context.analysis, context.data, settings, context.device, name, explorer)
    history = history_of(context.file(name, only))

    def watch(state: SearchProgress) -> None:
        best = f"best {state.best['accuracy']:.2%}"
        context.tell(f"candidate {state.done}/{settings.candidates} at {percents(at)}, {best}")

    header = {**setup.header, "dense": context.dense}
    with journal(history, replace(HISTORY, anew=ASIDE), header, resume=True) as book:
        pool = setup.pool()
        try:
            found = search(
                setup.analysis,
                settings,
                setup.strategy,
                pool,
                book,
                watch,
                context.tell,
            )
        finally:
            pool.shutdown()
        tried = [line for line in book.lines.values() if "seconds" in line]
        thought = sum(line.get("think_seconds", 0.0) for line in book.lines.values())
    effort = Effort(
        sum(line["seconds"] for line in tried) + thought,
        len(tried) * len(at) * (settings.steps or 0) * adaptation(settings.fitness).trains,
        len(tried) * setup.candidate_images(),
    )
    return setup.ranking(found, context.dense, history.name), effort


def _fisher(context: MethodContext, targets: list[Target], todo: set[Target]) -> Iterator[Level]:
    """With λ as it was set."""
    criterion = fisher(context.settings.fisher_weight)
    return prune_gradually("fisher", criterion, context, targets, todo)


METHODS = {
    "legr": Entry(partial(_once, "legr", "evolution")),
    "norm": Entry(partial(_unsearched, None)),
    "uniform": Entry(partial(_unsearched, "uniform")),
    "random": Entry(partial(_once, "random", "random")),
    "legr-ddpg": Entry(partial(_once, "legr-ddpg", "ddpg")),
    "amc": Entry(partial(_each, "amc", "amc"), each=True),
    "taylor": Entry(partial(prune_gradually, "taylor", TAYLOR)),
    "fisher": Entry(_fisher),
    "morphnet": Entry(morphnet, each=True),
}
