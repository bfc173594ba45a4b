"""A comparison from its first piece to its table, as people watch it."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legr_cli.commands import show
from legr_cli.commands.live import Live, Pace
from legr_cli.commands.typed import go_on
from legr_cli.errors import LegrError

if TYPE_CHECKING:
    from legr_cli.baselines.contest import Contest, Piece
    from legr_cli.baselines.summary import Standing
    from legr_cli.training.data import Data


def contested(contest: "Contest", data: "Data", resume: bool, force: bool, as_json: bool) -> None:
    """Compare, with something to look at, and write compare.json."""
    import json

    from legr_cli.baselines.contest import COMPARISON, comparison, hold, measured
    from legr_cli.files import staged
    from legr_cli.journal import journal, read_header

    folder = contest.folder
    folder.mkdir(exist_ok=True)
    path, total = folder / "compare.jsonl", len(contest.pieces())
    then = read_header(path, COMPARISON) if resume else None
    if then is None:
        dense = measured(contest.device, contest.known.network, data, "test")
    else:
        dense = then["dense"]
    header = contest.header(data, dense)
    with journal(path, COMPARISON, header, resume, force) as book, Live(total) as live:
        if force:
            _clear(folder)
        live.say(
            f"{contest.known.network.arch}: {dense['accuracy']:.2%} of {dense['images']} images; "
            f"{total} networks to make, {len(book.lines)} of them are on record"
        )
        lost = [row for row in book.lines.values() if not (folder / row.get("file", "")).exists()]
        if lost:
            live.say(f"{len(lost)} of these are not in {folder} any more: they stay as recorded")
        pace = Pace()

        def tell(done: int, piece: "Piece", text: str) -> None:
            title = f"{done + 1}/{total} {piece.method} {piece.target.value:.0%} #{piece.seed}"
            live.show(done, title, [text, *pace.left(done, total)])

        try:
            hold(replace(contest, tell=tell), book)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped after {len(book.lines)} of {total} networks; go on with: {go_on()}"
            ) from None
        found = comparison(contest, header, book)
    with staged() as files:
        text = json.dumps(found, indent=1, allow_nan=False) + "\n"
        files.file(folder / "compare.json").write_text(text, encoding="utf-8")
    if all("error" in row for row in found["rows"]):
        first = found["rows"][0]
        raise LegrError(f"nothing could be compared: {first['method']}: {first['error']}")
    _show(contest, found, as_json)


def _clear(folder: Path) -> None:
    """Away with an earlier comparison; whoever still works on it has the journal's lock."""
    for name in ("rankings", "pruned", "tuned"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "compare.json").unlink(missing_ok=True)


def _show(contest: "Contest", found: dict[str, Any], as_json: bool) -> None:
    """Accuracy and cost by method, and the file's name on stdout; or everything as JSON."""
    from legr_cli.baselines.summary import standings

    if as_json:
        show.emit(found)
        return
    standing = standings(found["rows"])
    targets = sorted(contest.settings.targets, key=lambda target: target.value)
    screen = show.console()
    seeds = contest.settings.repeats
    over = f"; mean ± deviation of {seeds} seeds" if seeds > 1 else ""
    for title, key in (("accuracy, %", "accuracy"), ("before tuning, %", "before")):
        columns = [f"{target.value:.10g}" for target in targets]
        table = show.table(title, "method", *columns, left=("method",))
        for own in standing:
            table.add_row(own.method, *(_cell(own, target.label, key) for target in targets))
        show.put(screen, table)
    images = f"of {found['dense']['images']} images, by share of FLOPs{over}"
    screen.print(images, style="dim")
    show.put(screen, _costs(standing))
    reasons: dict[str, list[str]] = {}
    for own in standing:
        for why in dict.fromkeys(own.refused.values()):
            reasons.setdefault(why, []).append(own.method)
    for why, methods in reasons.items():
        screen.print(f"– {', '.join(methods)}: {why}", style="dim", soft_wrap=True)
    name = contest.folder / "compare.json"
    screen.print(f"next: legr report {contest.folder} --out report.html", style="dim")
    show.line(str(name))


def _cell(own: "Standing", target: str, key: str) -> str:
    """`91.20 ± 0.11`, or a dash where there is nothing."""
    point = own.points.get(target)
    if point is None:
        return "–"
    deviation = point.deviation if key == "accuracy" else None
    text = f"{100 * getattr(point, key):.2f}"
    return text if deviation is None else f"{text} ± {100 * deviation:.2f}"


def _costs(standing: "list[Standing]") -> Any:
    """What each method took for all targets."""
    table = show.table(
        "cost for all targets, of one seed",
        *("method", "pruning, s", "× legr", "steps", "images", "tuning, s", "in all, × legr"),
        left=("method",),
    )
    for own in standing:
        if not own.points:
            table.add_row(own.method, *["–"] * 6)
            continue
        times = {key: "" if x is None else f"{x:.2f}" for key, x in own.times.items()}
        table.add_row(
            own.method,
            f"{own.pruning.seconds:.1f}",
            times["pruning"],
            show.count(own.pruning.steps),
            show.count(own.pruning.images),
            f"{own.tuning.seconds:.1f}",
            times["all"],
        )
    return table
