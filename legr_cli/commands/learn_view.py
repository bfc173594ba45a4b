"""Output of `legr learn`: scores before and after, or JSON."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legr_cli.commands import output
from legr_cli.targets import percents
from legr_cli.version import __version__

if TYPE_CHECKING:
    from legr_cli.search.learn import LearnResult


def show_learned(result: "LearnResult", out: Path, next_step: str, as_json: bool) -> None:
    """Print scores to stderr and the ranking's name to stdout, or everything as JSON."""
    from legr_cli.training.scores import finite_or_none, format_figure

    if as_json:
        output.print_json(_as_json(result, out))
        return
    more = () if result.best.divergence is None else ("divergence",)
    names = tuple(result.best.figures)
    columns = ("network", *names, "loss", *more)
    table = output.table("Scores on the validation images", *columns, left=("network",))
    shares = percents(result.settings.flops)
    dense = result.dense
    rows: list[tuple[str, Mapping[str, float], float | None, float | None]]
    rows = [("dense", dense.figures, finite_or_none(dense.loss), 0.0)]
    for name, score in (("α = 1, κ = 0", result.identity), ("learned", result.best)):
        if score is not None:
            scores = score.figures, score.loss, score.divergence
            rows.append((f"{shares} FLOPs, {name}", *scores))
    for name, figures, loss, divergence in rows:
        shown = [format_figure(key, figures[key]) if key in figures else "" for key in names]
        cells = (name, *shown, _number(loss), _number(divergence))
        table.add_row(*cells[: len(columns)])
    output.print_table(output.console(), table)
    output.print_notes(
        f"{result.candidates} candidates in {result.seconds:.0f} s of compute: {result.cached} "
        f"reused an earlier fitness, {result.rejected} rejected early",
        f"next: {next_step}",
    )
    output.print_result(str(out))


def _number(value: float | None) -> str:
    """A loss or a divergence; empty if there is none."""
    return "" if value is None else f"{value:.4f}"


def _as_json(result: "LearnResult", out: Path) -> dict[str, Any]:
    """The result as JSON data."""
    notes = result.ranking.notes
    keys = ("dense", "identity", "best", "seconds", "settings")
    facts = {key: notes[key] for key in keys if key in notes}
    files = {"ranking": str(out), "history": str(out.with_name(notes["history"]))}
    return {
        "legr": __version__,
        **files,
        "cached": result.cached,
        "rejected": result.rejected,
        **facts,
    }
