"""The table of methods, and how each is run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from legr_cli.baselines import amc, legr_ddpg
from legr_cli.baselines.arena import ASIDE, Arena, Level, Method
from legr_cli.baselines.fisher import fisher
from legr_cli.baselines.morphnet import morphnet
from legr_cli.baselines.random_search import drawn
from legr_cli.baselines.rounds import gradually
from legr_cli.baselines.spent import Spent
from legr_cli.baselines.taylor import TAYLOR
from legr_cli.errors import SettingError
from legr_cli.journal import journal
from legr_cli.pruning import Study, ranking_for
from legr_cli.ranking import Ranking
from legr_cli.search.history import HISTORY, history_of
from legr_cli.search.learn import Progress, Way, evolving, search
from legr_cli.search.session import Session, candidate_images
from legr_cli.settings import Search
from legr_cli.targets import Target, falling, percents

Ways = Callable[[Study, Search], Way]


@dataclass(frozen=True)
class Entry:
    """A method of the table."""

    run: Method
    each: bool = False  # it starts anew for each target


def parse_methods(text: str) -> tuple[str, ...]:
    """`legr,uniform`, or `all`."""
    names = tuple(METHODS) if text == "all" else tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in METHODS:
            raise SettingError(f"--methods {name}: expected all, or some of {', '.join(METHODS)}")
    return names


def _unsearched(
    name: str | None, arena: Arena, _: list[Target], todo: set[Target]
) -> Iterator[Level]:
    """Norms alone: nothing to learn, nothing to pay."""
    for target in falling(todo):
        yield Level(target, arena.known, ranking_for(arena.known, name), Spent())


def _once(
    name: str, way: Ways, arena: Arena, targets: list[Target], todo: set[Target]
) -> Iterator[Level]:
    """One search, as a rule at the lowest target, for all of them; the first one pays for it."""
    if todo:
        at = arena.settings.search_flops or (targets[-1].value,)
        ranking, spent = _searched(name, way, arena, at, None)
        for target in falling(todo):
            yield Level(target, arena.known, ranking, spent if target == targets[0] else Spent())


def _each(
    name: str, way: Ways, arena: Arena, _: list[Target], todo: set[Target]
) -> Iterator[Level]:
    """A search for each target."""
    for target in falling(todo):
        yield Level(target, arena.known, *_searched(name, way, arena, (target.value,), target))


def _searched(
    name: str, way: Ways, arena: Arena, at: tuple[float, ...], only: Target | None
) -> tuple[Ranking, Spent]:
    """A search on record, what it found and what it took."""
    settings = arena.settings.search(at, arena.seed)
    session = Session(arena.known, arena.data, settings, arena.device, name, way)
    history = history_of(arena.file(name, only))

    def watch(state: Progress) -> None:
        best = f"best {state.best['accuracy']:.2%}"
        arena.tell(f"candidate {state.done}/{settings.candidates} at {percents(at)}, {best}")

    header = {**session.header(), "dense": arena.dense}
    with journal(history, replace(HISTORY, anew=ASIDE), header, resume=True) as book:
        crew = session.crew()
        try:
            found = search(
                session.known, settings, way(session.known, settings), crew, book, watch, arena.tell
            )
        finally:
            crew.dismiss()
        tried = [line for line in book.lines.values() if "seconds" in line]
        thought = sum(line.get("think_seconds", 0.0) for line in book.lines.values())
    spent = Spent(
        sum(line["seconds"] for line in tried) + thought,
        len(tried) * len(at) * settings.steps * (settings.fitness == "finetune"),
        len(tried) * candidate_images(arena.data, settings),
    )
    return session.ranking(found, arena.dense, history.name), spent


def _fisher(arena: Arena, targets: list[Target], todo: set[Target]) -> Iterator[Level]:
    """With λ as it was set."""
    criterion = fisher(arena.settings.fisher_weight)
    return gradually("fisher", criterion, arena, targets, todo)


METHODS = {
    "legr": Entry(partial(_once, "legr", evolving)),
    "norm": Entry(partial(_unsearched, None)),
    "uniform": Entry(partial(_unsearched, "uniform")),
    "random": Entry(partial(_once, "random", drawn)),
    "legr-ddpg": Entry(partial(_once, "legr-ddpg", legr_ddpg.reinforced)),
    "amc": Entry(partial(_each, "amc", amc.reinforced), each=True),
    "taylor": Entry(partial(gradually, "taylor", TAYLOR)),
    "fisher": Entry(_fisher),
    "morphnet": Entry(morphnet, each=True),
}
