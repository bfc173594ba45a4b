"""Progress events of a search, and the messages before it starts."""

from collections.abc import Callable

from legr_cli.data.dataset import described, doubts
from legr_cli.journal import Line
from legr_cli.progress import Message, Progress, Report, resume_text
from legr_cli.search.fitness import adaptation
from legr_cli.search.history import PRICED
from legr_cli.search.objectives import divergences_in
from legr_cli.search.run import SearchProgress
from legr_cli.search.setup import SearchSetup
from legr_cli.settings import Search
from legr_cli.targets import percents
from legr_cli.training.scores import headline, score_in, shown


def progress_callback(setup: SearchSetup, progress: Report) -> Callable[[SearchProgress], None]:
    """A callback that reports a search as progress events."""
    classes = len(setup.data.classes)

    def on_progress(state: SearchProgress) -> None:
        best, latest, settings = state.best, state.latest, setup.settings
        total = state.total or PRICED  # all that is known to come
        if state.done == PRICED and state.recorded < PRICED < total:
            progress(Message(_price(state.seconds, total, settings)))
        facts = [
            f"best {_scores(best)} (#{best['candidate'] + 1})",
            f"latest {_scores(latest)}",
        ]
        if state.cached:
            facts.append(f"{state.cached} repeats")
        of = f"/{state.total}" if state.total else ""
        title, milestone = f"candidate {state.done}{of}", state.done in (1, state.total)
        progress(Progress(state.done, total, title, tuple(facts), milestone, state.recorded))
        lowest = min(latest.get("each", [score_in(latest)]))
        by_score = not adaptation(settings.fitness).ranks_by_divergence
        is_chance = setup.task.is_classification and classes and lowest < 2 / classes
        if state.done == 1 and by_score and is_chance:
            progress(
                Message(
                    "this is close to chance, so fitness says little: try a higher --flops, more "
                    "--steps or --fitness finetune"
                )
            )

    return on_progress


def _price(seconds: float, total: int, settings: Search) -> str:
    """What a search will take: `about 6 minutes: 400 candidates of 0.9 s`."""
    each = f"{seconds:.2f}" if seconds < 10 else f"{seconds:.0f}"
    candidates = f"{total:,} candidates of {each} s"
    if settings.minutes is not None:
        return f"--minutes {settings.minutes:g} allows {candidates}"
    left = _duration(total * seconds / settings.workers)
    return f"about {left}: {candidates}; --candidates or --minutes changes that"


def _duration(seconds: float) -> str:
    """`40 s`, `6 minutes` or `3.2 hours`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def _scores(line: Line) -> str:
    """A candidate's score, and its divergence at each share if that is what it is ranked by."""
    divergences = divergences_in(line)
    if divergences is None:
        return shown(line)
    return f"{shown(line)} at divergence {' '.join(f'{d:.3g}' for d in divergences)}"


def opening_messages(setup: SearchSetup, dense: Line, recorded: int, resume: bool) -> list[str]:
    """What is searched and how, and warnings about likely mistakes."""
    settings, classes = setup.settings, len(setup.data.classes)
    messages = [
        f"{setup.analysis.network.arch} on {setup.data.feed}: "
        f"{headline(dense)} {shown(dense)} on {dense['images']} validation images, "
        "which legr never trains on",
        *described(setup.data, training=adaptation(setup.settings.fitness).trains),
        *doubts(setup.data),
    ]
    if setup.task.is_classification and score_in(dense) < 1.5 / classes:
        messages.append(
            "this is no better than chance: are --data, --normalize, --input and the checkpoint "
            "right?"
        )
    if recorded == settings.candidates and settings.minutes is None:
        messages.append(f"all {recorded} candidates are in the history: nothing left to evaluate")
    elif resume and settings.minutes is None:
        messages.append(resume_text(recorded, settings.candidates, "candidates"))
    flops, ways = percents(setup.settings.flops), ""
    if adaptation(setup.settings.fitness).ranks_by_divergence:
        ways = ", by how far their outputs are from the dense network's"
    return [*messages, f"candidates are compared at {flops} of the FLOPs{ways}"]
