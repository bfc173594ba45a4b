"""Output of `legr evaluate`: a table of scores, or JSON."""

from typing import Any

from legr_cli.commands import output
from legr_cli.version import __version__


def show_scores(
    rows: list[dict[str, Any]], data: str, split: str, notes: list[str], as_json: bool
) -> None:
    """Print the scores to stdout, as a table or JSON; notes go to stderr."""
    if as_json:
        about = {"legr": __version__, "data": data, "split": split, "notes": notes}
        output.print_json({**about, "scores": rows})
        return
    output.print_table(output.console(stderr=False), _table(rows, data, split))
    output.print_notes(*notes)


def _table(rows: list[dict[str, Any]], data: str, split: str) -> Any:
    """One row per network; top-5 accuracy only where it means something."""
    top5 = all(row["classes"] > 5 for row in rows)
    columns = ("network", "accuracy", *["top 5"] * top5, "loss", "FLOPs", "of dense")
    title = f"{rows[0]['images']} {split} images of {data}"
    table = output.table(title, *columns, left=columns[:1])
    for row in rows:
        table.add_row(
            row["file"],
            f"{row['accuracy']:.2%}",
            *[f"{row['top5']:.2%}"] * top5,
            "" if row["loss"] is None else f"{row['loss']:.4f}",
            output.format_count(row["flops"]),
            f"{row['flops_share']:.1%}",
        )
    return table
