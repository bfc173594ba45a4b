"""A comparison from its first piece to its table, as people watch it."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legr_cli.commands import output
from legr_cli.commands.invocation import resume_command
from legr_cli.commands.progress import Pace, ProgressDisplay
from legr_cli.errors import LegrError

if TYPE_CHECKING:
    from legr_cli.baselines.comparison import ComparisonRun, Piece
    from legr_cli.baselines.summary import MethodSummary
    from legr_cli.data.dataset import Data


def run_and_show(
    run: "ComparisonRun", data: "Data", resume: bool, force: bool, as_json: bool
) -> None:
    """Compare, with something to look at, and write compare.json."""
    import json

    from legr_cli.baselines.comparison import COMPARISON, comparison, measured, run_comparison
    from legr_cli.files import staged
    from legr_cli.journal import journal, read_header

    folder = run.folder
    folder.mkdir(exist_ok=True)
    path, total = folder / "compare.jsonl", len(run.pieces())
    then = read_header(path, COMPARISON) if resume else None
    if then is None:
        dense = measured(run.device, run.analysis.network, data, "test")
    else:
        dense = then["dense"]
    header = run.header(data, dense)
    with (
        journal(path, COMPARISON, header, resume, force) as book,
        ProgressDisplay(total) as display,
    ):
        if force:
            _clear(folder)
        display.log(
            f"{run.analysis.network.arch}: {dense['accuracy']:.2%} of {dense['images']} images; "
            f"{total} networks to make, {len(book.lines)} of them are on record"
        )
        lost = [row for row in book.lines.values() if not (folder / row.get("file", "")).exists()]
        if lost:
            display.log(f"{len(lost)} of these are not in {folder} any more: they stay as recorded")
        pace = Pace()

        def tell(done: int, piece: "Piece", text: str) -> None:
            title = f"{done + 1}/{total} {piece.method} {piece.target.value:.0%} #{piece.seed}"
            display.update(done, title, [text, *pace.remaining(done, total)])

        try:
            run_comparison(replace(run, tell=tell), book)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped after {len(book.lines)} of {total} networks; "
                f"resume with: {resume_command()}"
            ) from None
        found = comparison(run, header, book)
    with staged() as files:
        text = json.dumps(found, indent=1, allow_nan=False) + "\n"
        files.file(folder / "compare.json").write_text(text, encoding="utf-8")
    if all("error" in row for row in found["rows"]):
        first = found["rows"][0]
        raise LegrError(f"nothing could be compared: {first['method']}: {first['error']}")
    _show(run, found, as_json)


def _clear(folder: Path) -> None:
    """Away with an earlier comparison; whoever still works on it has the journal's lock."""
    for name in ("rankings", "pruned", "tuned"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "compare.json").unlink(missing_ok=True)


def _show(run: "ComparisonRun", found: dict[str, Any], as_json: bool) -> None:
    """Accuracy and cost by method, and the file's name on stdout; or everything as JSON."""
    from legr_cli.baselines.summary import ComparisonRow, summarize

    if as_json:
        output.print_json(found)
        return
    summaries = summarize(map(ComparisonRow.from_line, found["rows"]))
    targets = sorted(run.settings.targets, key=lambda target: target.value)
    screen = output.console()
    seeds = run.settings.repeats
    over = f"; mean ± deviation of {seeds} seeds" if seeds > 1 else ""
    for title, key in (("accuracy, %", "accuracy"), ("before tuning, %", "before")):
        columns = [f"{target.value:.10g}" for target in targets]
        table = output.table(title, "method", *columns, left=("method",))
        for own in summaries:
            table.add_row(own.method, *(_cell(own, target.label, key) for target in targets))
        output.print_table(screen, table)
    images = f"of {found['dense']['images']} images, by share of FLOPs{over}"
    screen.print(images, style="dim")
    output.print_table(screen, _costs(summaries))
    reasons: dict[str, list[str]] = {}
    for own in summaries:
        for why in dict.fromkeys(own.failures.values()):
            reasons.setdefault(why, []).append(own.method)
    for why, methods in reasons.items():
        screen.print(f"– {', '.join(methods)}: {why}", style="dim", soft_wrap=True)
    name = run.folder / "compare.json"
    screen.print(f"next: legr report {run.folder} --out report.html", style="dim")
    output.print_result(str(name))


def _cell(own: "MethodSummary", target: str, key: str) -> str:
    """`91.20 ± 0.11`, or a dash where there is nothing."""
    point = own.by_target.get(target)
    if point is None:
        return "–"
    deviation = point.deviation if key == "accuracy" else None
    text = f"{100 * getattr(point, key):.2f}"
    return text if deviation is None else f"{text} ± {100 * deviation:.2f}"


def _costs(summaries: "list[MethodSummary]") -> Any:
    """What each method took for all targets."""
    table = output.table(
        "cost for all targets, of one seed",
        *("method", "pruning, s", "× legr", "steps", "images", "tuning, s", "in all, × legr"),
        left=("method",),
    )
    for own in summaries:
        if not own.by_target:
            table.add_row(own.method, *["–"] * 6)
            continue
        relative = [
            "" if ratio is None else f"{ratio:.2f}"
            for ratio in (own.relative_pruning, own.relative_total)
        ]
        table.add_row(
            own.method,
            f"{own.pruning.seconds:.1f}",
            relative[0],
            output.format_count(own.pruning.steps),
            output.format_count(own.pruning.images),
            f"{own.tuning.seconds:.1f}",
            relative[1],
        )
    return table
