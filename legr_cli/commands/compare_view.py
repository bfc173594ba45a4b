"""Output of `legr compare`: score and cost by method, or JSON."""

from typing import TYPE_CHECKING, Any

from legr_cli.commands import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from legr_cli.baselines.compare import Comparison
    from legr_cli.baselines.summary import MethodSummary


def show_comparison(found: "Comparison", as_json: bool) -> None:
    """Print score and cost by method to stderr and the file to stdout, or everything as JSON."""
    from legr_cli.training.scores import capitalized, with_unit

    if as_json:
        output.print_json(found.facts)
        return
    targets = sorted(found.settings.targets, key=lambda target: target.value)
    screen, seeds, name = output.console(), found.settings.repeats, found.score_name
    stages = {"score": "", "before": " before fine-tuning"}
    if found.settings.repair:
        stages |= {"before": " repaired", "cut": " as cut"}
    for key, stage in stages.items():
        columns = [f"{target.value:.10g}" for target in targets]
        title = with_unit(f"{capitalized(name)}{stage}", name)
        table = output.table(title, "method", *columns, left=("method",))
        for summary in found.methods:
            cells = (_cell(summary, target.label, key, name) for target in targets)
            table.add_row(summary.method, *cells)
        output.print_table(screen, table)
    over = f"; mean ± standard deviation over {seeds} seeds" if seeds > 1 else ""
    output.print_notes(f"on {found.dense.images} images, by share of the FLOPs kept{over}")
    output.print_table(screen, _costs(found.methods))
    output.print_notes(*_failures(found.methods))
    output.print_notes(f"next: legr report {found.folder} --out report.html")
    output.print_result(str(found.folder / "compare.json"))


def _failures(summaries: "Sequence[MethodSummary]") -> list[str]:
    """Each reason why a result is missing, and the methods it applies to."""
    reasons: dict[str, list[str]] = {}
    for summary in summaries:
        for why in dict.fromkeys(summary.failures.values()):
            reasons.setdefault(why, []).append(summary.method)
    return [f"– {', '.join(methods)}: {why}" for why, methods in reasons.items()]


def _cell(summary: "MethodSummary", target: str, key: str, name: str) -> str:
    """`91.20 ± 0.11`, or a dash where there is no result."""
    from legr_cli.training.scores import as_number

    point = summary.by_target.get(target)
    if point is None or getattr(point, key) is None:
        return "–"
    deviation = point.deviation if key == "score" else None
    text = as_number(name, getattr(point, key))
    return text if deviation is None else f"{text} ± {as_number(name, deviation)}"


def _costs(summaries: "Sequence[MethodSummary]") -> Any:
    """One row per method."""
    table = output.table(
        "Cost of all targets, per seed",
        *("method", "pruning, s", "× legr", "steps", "images", "fine-tuning, s", "total, × legr"),
        left=("method",),
    )
    for summary in summaries:
        if not summary.by_target:
            table.add_row(summary.method, *["–"] * 6)
            continue
        relative = [
            "" if ratio is None else f"{ratio:.2f}"
            for ratio in (summary.relative_pruning, summary.relative_total)
        ]
        table.add_row(
            summary.method,
            f"{summary.pruning.seconds:.1f}",
            relative[0],
            output.format_count(summary.pruning.steps),
            output.format_count(summary.pruning.images),
            f"{summary.tuning.seconds:.1f}",
            relative[1],
        )
    return table
