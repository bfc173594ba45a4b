"""A search from its first candidate to its ranking, as people watch it."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legr_cli.version import __version__

if TYPE_CHECKING:
    from legr_cli.commands.progress import Pace
    from legr_cli.search.run import Progress, SearchResult
    from legr_cli.search.setup import SearchSetup


def run_and_show(
    setup: "SearchSetup",
    header: dict[str, Any],
    out: Path,
    resume: bool,
    force: bool,
    client: Any,
    next_step: str,
    as_json: bool,
) -> None:
    """Search, with something to look at, and write the ranking."""
    from legr_cli.commands.invocation import command_line, resume_command
    from legr_cli.commands.progress import Pace, ProgressDisplay
    from legr_cli.files import staged
    from legr_cli.journal import journal
    from legr_cli.ranking import write_ranking
    from legr_cli.search.history import HISTORY, history_of
    from legr_cli.search.run import search
    from legr_cli.targets import percents

    total = setup.settings.candidates
    path = history_of(out)
    with contextlib.ExitStack() as stack:
        book = stack.enter_context(journal(path, HISTORY, header, resume, force))
        display = stack.enter_context(ProgressDisplay(total))
        for text in _greeting(setup, header["dense"], len(book.lines), resume):
            display.log(text)
        pool = setup.pool(client)
        stack.callback(pool.shutdown)

        pace = Pace()

        def watch(state: "Progress") -> None:
            title = f"candidate {state.done}/{total}"
            display.update(state.done, title, _facts(state, total, pace), state.done in (1, total))
            least = min(state.latest.get("each", [state.latest["accuracy"]]))
            if state.done == 1 and least < 2 / len(setup.data.classes):
                display.log(
                    "that is near chance, so fitness will tell little: a higher --flops, more "
                    "--steps or --fitness finetune tells more"
                )

        try:
            strategy = setup.strategy(setup.analysis, setup.settings)
            found = search(setup.analysis, setup.settings, strategy, pool, book, watch, display.log)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped after {len(book.lines)} of {total} candidates; "
                f"resume with: {resume_command()}"
            ) from None
    ranking = setup.ranking(found, header["dense"], path.name)
    each = [line.get("seconds", 0.0) for line in book.lines.values()]
    ranking.notes["command"] = command_line()
    ranking.notes["seconds"] = round(sum(each), 1)
    with staged() as files:
        write_ranking(ranking, files.file(out))
    shares = percents(setup.settings.flops)
    _show(ranking.notes, found, shares, out, path, next_step, as_json)


def _facts(state: "Progress", total: int, pace: "Pace") -> list[str]:
    """`best 83.90% (#31) · latest 81.00% · 0:52:10 left · 412/h · 2 repeats`."""
    parts = [
        f"best {state.best['accuracy']:.2%} (#{state.best['candidate'] + 1})",
        f"latest {state.latest['accuracy']:.2%}",
    ]
    if state.done > state.recorded:  # those of the journal took no time
        parts += pace.remaining(state.done, total)
        if rate := pace.rate(state.done):
            parts.append(f"{rate * 3600:.0f}/h")
    if state.cached:
        parts.append(f"{state.cached} repeats")
    return parts


def _greeting(
    setup: "SearchSetup", dense: dict[str, Any], recorded: int, resume: bool
) -> list[str]:
    """What is searched, and what looks wrong with it."""
    from legr_cli.data.dataset import doubts
    from legr_cli.targets import percents

    settings, total = setup.settings, setup.settings.candidates
    lines = [
        f"{setup.analysis.network.arch} on {setup.data.feed}: {dense['accuracy']:.2%} of "
        f"{dense['images']} validation images, which legr never trains on",
        *doubts(setup.data),
    ]
    if dense["accuracy"] < 1.5 / len(setup.data.classes):
        lines.append(
            "that is no better than chance: is it the right --data, --normalize, --input and "
            "checkpoint?"
        )
    if recorded == total:
        lines.append(f"all {total} candidates are in the history: nothing is left to try")
    elif resume:
        lines.append(
            f"{recorded} of {total} candidates are in the history: going on"
            if recorded
            else "nothing was found to resume: beginning"
        )
    return [*lines, f"candidates are compared at {percents(settings.flops)} of its FLOPs"]


def _show(
    notes: dict[str, Any],
    found: "SearchResult",
    shares: str,
    out: Path,
    history: Path,
    next_step: str,
    as_json: bool,
) -> None:
    """What was gained, and the ranking's name on stdout; or everything as JSON."""
    from legr_cli.commands import output

    facts = {key: notes[key] for key in ("dense", "identity", "best", "seconds", "settings")}
    if as_json:
        output.print_json(
            {
                "legr": __version__,
                "ranking": str(out),
                "history": str(history),
                "cached": found.cached,
                **facts,
            }
        )
        return
    table = output.table(
        "accuracy on the validation images", "network", "accuracy", "loss", left=("network",)
    )
    for name, key in (
        ("dense", "dense"),
        (f"{shares} FLOPs, α = 1, κ = 0", "identity"),
        (f"{shares} FLOPs, learned", "best"),
    ):
        loss = facts[key]["loss"]
        table.add_row(name, f"{facts[key]['accuracy']:.2%}", "" if loss is None else f"{loss:.4f}")
    screen = output.console()
    output.print_table(screen, table)
    screen.print(
        f"{notes['settings']['candidates']} candidates, {facts['seconds']:.0f} s of work; "
        f"{found.cached} repeats took the fitness of an earlier one that keeps the same channels",
        style="dim",
    )
    screen.print(f"next: {next_step}", style="dim", soft_wrap=True)
    output.print_result(str(out))
