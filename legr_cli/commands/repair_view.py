"""Output of `legr repair`: a table of networks, or JSON."""

import math
from typing import TYPE_CHECKING, Any

from legr_cli.commands import output
from legr_cli.version import __version__

if TYPE_CHECKING:
    from legr_cli.repairs.files import RepairedFile
    from legr_cli.repairs.repair import RepairResult


def show_repaired(written: "list[RepairedFile]", as_json: bool) -> None:
    """Print the table and the files to stdout and notes to stderr, or everything as JSON."""
    if as_json:
        output.print_json(
            {
                "legr": __version__,
                "repaired": [{"file": str(row.file), **repair_json(row.result)} for row in written],
            }
        )
        return
    columns = ("network", "images", "layers", "divergence before", "after", "")
    table = output.table("", *columns, left=("network", ""))
    for row in written:
        result = row.result
        repaired = len(result.layers) - len(result.left)
        numbers = (f"{value:.4g}" for value in (result.before, result.after))
        verdict = "repaired" if result.helped else "kept as it was"
        table.add_row(row.file.name, str(result.images), str(repaired), *numbers, verdict)
    output.print_table(output.console(), table)
    output.print_notes(
        "divergence from the dense network, on the held-out fifth of the images; 0 means equal",
        *dict.fromkeys(
            f"not repaired: {layer.name}, because {layer.reason}"
            for row in written
            for layer in row.result.left
        ),
    )
    for row in written:
        output.print_result(row.file)


def repair_json(result: "RepairResult") -> dict[str, Any]:
    """What became of one network, as JSON data."""
    return {
        "helped": result.helped,
        "divergence": {
            "before": _finite(result.before),
            "after": _finite(result.after),
        },
        "images": result.images,
        "held_out": result.held_out,
        "layers": [
            {
                "name": layer.name,
                "rows": layer.rows,
                "unknowns": layer.unknowns,
                "corrects": layer.corrects,
                "left": layer.reason,
            }
            for layer in result.layers
        ],
        "notes": list(result.notes),
    }


def _finite(value: float) -> float | None:
    """A number as JSON has it."""
    return value if math.isfinite(value) else None
