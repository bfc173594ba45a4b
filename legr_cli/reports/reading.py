"""Parse result files into records. Files may come from anywhere, so every value is checked."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from legr_cli.baselines.summary import ComparisonRow, is_comparison
from legr_cli.deploy.slope import points
from legr_cli.errors import ReportError, first_line
from legr_cli.journal import is_scored
from legr_cli.models.card import Card
from legr_cli.reports.records import (
    BenchRecord,
    BenchRow,
    CandidateRecord,
    ComparisonRecord,
    LayerParameters,
    Measure,
    NetworkRecord,
    SearchRecord,
    StageScores,
)
from legr_cli.training.scores import (
    ACCURACY,
    WORST,
    figures_in,
    first_figure,
    headline,
    is_share,
    score_in,
)

JsonObject = dict[str, Any]


def read_json(path: Path) -> JsonObject:
    """Read the object in a JSON file; empty if the file holds any other value."""
    try:
        return _object(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(f"{path} is not readable JSON: {first_line(error)}") from error


def bench_record(data: JsonObject) -> BenchRecord:
    """Make the record of a bench.json that has passed `check_bench`."""
    device = data["device"]
    rows = [
        BenchRow(
            row["name"],
            Path(row["file"]) if "file" in row else None,
            row.get("arch"),
            row.get("flops"),
            row.get("params"),
            row["median_ms"],
            row["ratio"],
        )
        for row in data["models"]
    ]
    return BenchRecord(
        str(device.get("board") or device.get("cpu") or device.get("machine") or "?"),
        str(device.get("runtime")),
        data["against"],
        rows,
        list(points(data).values()),
        str(data.get("command", "")),
    )


def search_record(path: Path, data: JsonObject) -> SearchRecord:
    """Make the record of a ranking.json and, if it is next to it, its history."""
    flops = _object(data.get("settings")).get("flops")
    shares = flops if isinstance(flops, list) else [flops]
    best = _scored(data.get("best"))
    name = ACCURACY if best is None else headline(best)
    return SearchRecord(
        path,
        _layers(path, data),
        [share for share in shares if isinstance(share, float)],
        _candidates(path, data, name),
        str(data["command"]) if "command" in data else None,
        Measure(name, "validation"),
    )


def _layers(path: Path, data: JsonObject) -> list[LayerParameters]:
    """α and κ of every layer that has them; others have one score per filter."""
    rows = data.get("layers")
    if not isinstance(rows, list) or not all(map(_is_layer, rows)):
        raise ReportError(
            f"{path} is damaged: a layer has missing or invalid values; learn the ranking again"
        )
    return [
        LayerParameters(row["name"], row["alpha"], row["kappa"])
        for row in rows
        if "scores" not in row
    ]


def _is_layer(row: Any) -> bool:
    """Whether a layer of a ranking has a name and finite numbers."""
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return False
    scores = row.get("scores")
    numbers = scores if isinstance(scores, list) else [row.get("alpha"), row.get("kappa")]
    return all(isinstance(number, int | float) and abs(number) < 1e30 for number in numbers)


def _candidates(path: Path, data: JsonObject, name: str) -> list[CandidateRecord]:
    """Scores in the history next to a ranking, up to the first damaged line.

    Candidates that could not reach a target have none, except for an accuracy of 0.
    """
    history = path.parent / Path(str(data.get("history", ""))).name
    found: list[tuple[int, CandidateRecord]] = []  # with the numbers of their candidates
    if history.is_file():
        for text in history.read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
            try:
                line = _scored(json.loads(text))
            except ValueError:
                break
            if line is not None and headline(line) == name and score_in(line) > WORST:
                candidate = CandidateRecord(score_in(line), first_figure(line)[1])
                found.append((_count(line.get("candidate")) or 0, candidate))
    found.sort(key=lambda numbered: numbered[0])
    return [candidate for _, candidate in found]


def network_record(path: Path, card: Card, peers: Iterable[Card]) -> NetworkRecord:
    """Make the record of a network from the card in its file.

    A dense network does not record its FLOPs; `peers` pruned from the same architecture do.
    """
    notes, dense = card.notes, _count(card.notes.get("dense_flops"))
    if card.kept is None and dense is None:
        costs = (_count(p.notes.get("dense_flops")) for p in peers if p.arch == card.arch)
        dense = next(filter(None, costs), None)
    training = _object(notes.get("training"))
    commands = notes.get("commands")
    versions = {"legr": notes.get("legr"), **_object(training.get("made_with"))}
    kept, widths = card.kept or {}, _object(notes.get("dense_channels"))
    return NetworkRecord(
        file=path,
        method="dense" if card.kept is None else str(notes.get("method", "legr")),
        arch=str(card.arch),
        flops=dense if card.kept is None else _count(_object(notes.get("flops")).get("after")),
        dense_flops=dense,
        params=_count(_object(notes.get("params")).get("after")),
        scores=_training_scores(training, bool(kept)),
        stage=_stage(card),
        target=_share(_object(notes.get("target")).get("flops")),
        widths={
            name: (len(channels), _count(widths[name]) or len(channels))
            for name, channels in kept.items()
            if name in widths
        },
        commands=[str(c) for c in commands] if isinstance(commands, list) else [],
        made_with={name: str(version) for name, version in versions.items() if version},
    )


def _training_scores(training: JsonObject, is_pruned: bool) -> dict[Measure, StageScores]:
    """The figure that legr finetune recorded: on test images, or else on validation images."""
    before = _scored(training.get("before")) if is_pruned else None
    for split in ("test", "validation"):
        line = _scored(training.get(split))
        if line is not None:
            name, value = first_figure(line)
            earlier = figures_in(before).get(name) if before else None
            return {Measure(name, split): StageScores(value, earlier)}
    return {}


def _stage(card: Card) -> str:
    """The last thing that was done to a network."""
    if card.kept is None:
        return "dense"
    done = (("tuned", "training"), ("repaired", "repaired"))
    return next((stage for stage, note in done if note in card.notes), "cut")


def read_scores(path: Path, data: JsonObject) -> dict[tuple[Path, Measure], float]:
    """Figures that `legr evaluate` wrote, by file and measure."""
    rows = data.get("scores")
    if not isinstance(rows, list):
        raise ReportError(f"{path} is damaged: it has no scores; evaluate the networks again")
    split = {"test": "test", "val": "validation"}.get(str(data.get("split")))
    if split is None or data.get("recalibrated"):
        return {}
    scores = {}
    for row in rows:
        line, file = _scored(row), _object(row).get("file")
        if isinstance(file, str) and line is not None:
            name, value = first_figure(line)
            scores[Path(file).resolve(), Measure(name, split)] = value
    return scores


def read_comparisons(paths: Iterable[Path]) -> list[ComparisonRecord]:
    """Read comparisons, and merge those that differ only in their seeds."""
    groups: dict[str, list[ComparisonRecord]] = {}
    for path in paths:
        data = read_json(path)
        if not is_comparison(data):
            raise ReportError(
                f"{path} is damaged: a value is missing or has the wrong type; "
                "rerun the comparison with --resume"
            )
        comparison = _comparison(path, data)
        group = groups.setdefault(_subject(data), [])
        seeds = {row.seed for other in group for row in other.rows}
        if any(row.seed in seeds for row in comparison.rows):
            group = groups.setdefault(str(path), [])  # a repeated seed is not another sample
        group.append(comparison)
    return [_merged(group) for group in groups.values()]


def _comparison(path: Path, data: JsonObject) -> ComparisonRecord:
    """Make the record of one compare.json."""
    return ComparisonRecord(
        [path],
        data["arch"],
        first_figure(data["dense"])[1],
        [ComparisonRow.from_line(row) for row in data["rows"]],
        [str(data["command"])] if "command" in data else [],
        Measure(data.get("score", ACCURACY), data.get("split", "test")),
    )


def _subject(data: JsonObject) -> str:
    """What was compared, and with which settings, except for the seed."""
    settings = {**_object(data.get("settings")), "seed": 0, "repeats": 0}
    subject = [data.get(key) for key in ("arch", "input", "weights_sha256", "statistics", "task")]
    # not the sha256: it covers the split, which depends on the seed
    images = _object(data.get("data"))
    subject += [images.get(key) for key in ("kind", "classes", "images")]
    return json.dumps([*subject, settings])


def _merged(group: list[ComparisonRecord]) -> ComparisonRecord:
    """Merge comparisons into one with the rows and commands of all."""
    return replace(
        group[0],
        files=[path for comparison in group for path in comparison.files],
        rows=[row for comparison in group for row in comparison.rows],
        commands=[command for comparison in group for command in comparison.commands],
    )


def _object(value: Any) -> JsonObject:
    """Return a JSON object as it is, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    """Return a positive 64-bit integer as it is, and None for any other value."""
    return value if type(value) is int and 0 < value < 2**63 else None


def _scored(value: Any) -> JsonObject | None:
    """Return a line with a score and valid figures as it is, and None for any other value."""
    line = _object(value)
    if not is_scored(line):
        return None
    figures = figures_in(line).items()
    valid = all(_share(x) is not None if is_share(name) else abs(x) < 1e30 for name, x in figures)
    return line if valid else None


def _share(value: Any) -> float | None:
    """Return a number from 0 to 1 as a float, and None for any other value."""
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None
