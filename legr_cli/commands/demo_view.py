"""Output of `legr demo`: accuracy and latency of all networks, or JSON."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from legr_cli.commands import output

if TYPE_CHECKING:
    from rich.table import Table

    from legr_cli.reports.records import NetworkRecord


def show_results(out: Path, as_json: bool) -> None:
    """Print the networks and the name of the report to stdout, as a table or JSON."""
    from legr_cli.reports.collect import collect

    networks, page = collect([out]).networks, str(out / "report.html")
    if as_json:
        output.print_json({"report": page, "networks": [_as_json(net) for net in networks]})
        return
    output.print_table(output.console(stderr=False), _table(networks))
    output.print_result(page)


def _as_json(net: "NetworkRecord") -> dict[str, Any]:
    """One network as JSON data."""
    from legr_cli.reports.records import TEST_ACCURACY

    scores = net.at(TEST_ACCURACY)
    return {
        "file": str(net.file),
        "method": net.method,
        "flops": net.flops,
        "flops_share": net.share,
        "accuracy": scores.final,
        "cut": scores.cut,
        "repaired": scores.repaired,
        "ms": net.latencies[0].ms if net.latencies else None,
    }


def _table(networks: "list[NetworkRecord]") -> "Table":
    """One row per network."""
    from legr_cli.reports.records import TEST_ACCURACY

    columns = ("network", "FLOPs", "of dense", "cut", "repaired", "tuned", "ms", "of dense")
    table = output.table("Test accuracy, FLOPs and latency", *columns, left=("network",))
    for net in networks:
        latency = net.latencies[0] if net.latencies else None
        scores = net.at(TEST_ACCURACY)
        stages = scores.cut, scores.repaired, scores.final
        table.add_row(
            net.label,
            output.format_count(net.flops or 0),
            f"{net.share or 0:.1%}",
            *("" if figure is None else f"{figure:.1%}" for figure in stages),
            "" if latency is None else f"{latency.ms:.3g}",
            "" if latency is None else f"{latency.ratio:.1%}",
        )
    return table
