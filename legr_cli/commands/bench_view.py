"""Output of `legr bench`: a table of latencies with a text plot, and notes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from legr_cli.commands import output
from legr_cli.deploy.slope import Point, fitted_slope, points

if TYPE_CHECKING:
    from legr_cli.deploy.bench_models import BenchModels
    from legr_cli.settings import Bench

_WIDTH, _HEIGHT = 48, 12


def bundle_and_show(models: "BenchModels", settings: "Bench", folder: Path) -> None:
    """Write a bundle for a board and print the names of its files."""
    from legr_cli.deploy.bundle import write_bundle

    with output.spinner("writing the bundle") as update:
        written = write_bundle(models, settings, folder, update)
    for path in written:
        output.print_result(path)


def show_measurements(found: list[dict[str, Any]], as_json: bool) -> None:
    """Print measurements to stdout, as tables or JSON."""
    if as_json:
        output.print_json(found[0] if len(found) == 1 else {"measurements": found})
        return
    for measurement in found:
        _show_measurement(measurement)


def _show_measurement(measurement: dict[str, Any]) -> None:
    """Print one measurement to stdout; notes go to stderr."""
    screen, by_name = output.console(stderr=False), points(measurement)
    output.print_table(screen, _table(measurement, by_name))
    found = list(by_name.values())
    fit = fitted_slope(found)
    if fit is not None:
        for text in _plot(found, *fit):
            screen.print(text)
        screen.print(
            f"slope {fit[0]:.2f}: share of latency saved per share of FLOPs saved, "
            "fitted over all networks"
        )
    worst = max((row.get("difference") or 0.0 for row in measurement["models"]), default=0.0)
    if worst:
        output.print_notes(
            f"outputs of exported networks differ from torch by at most {worst:.0e} (relative)"
        )
    output.print_notes(*map(str, measurement["notes"]))


def _table(measurement: dict[str, Any], by_name: dict[str, Point]) -> Table:
    """One row per network."""
    columns = ("network", "FLOPs", "ms", "p5", "p95", "ratio", "±", "slope")
    table = output.table(_title(measurement), *columns, left=("network",))
    for row in measurement["models"]:
        slope = by_name[row["name"]].slope if row["name"] in by_name else None
        low, high = row["ratio_range"]
        table.add_row(
            row["name"],
            output.format_count(row["flops"]) if row.get("flops") else "",
            *(f"{row[key]:.3g}" for key in ("median_ms", "p5_ms", "p95_ms")),
            f"{row['ratio']:.3f}",
            f"{(high - low) / 2:.3f}",
            "" if slope is None else f"{slope:.2f}",
        )
    return table


def _title(measurement: dict[str, Any]) -> str:
    """`Cortex-A57, 1 thread on core 3, onnxruntime 1.19.2`."""
    device, settings = measurement["device"], measurement.get("settings", {})
    threads = settings.get("threads", 1)
    pinned = ", ".join(map(str, device.get("pinned") or []))
    on = f" on core {pinned}" if pinned else ""
    names = [device.get(key) for key in ("host", "board", "cpu")]
    facts = [f"{threads} thread{'s' if threads != 1 else ''}{on}", device.get("runtime")]
    if device.get("governor"):
        facts.append(f"governor {device['governor']}")
    if (device.get("temperature_c") or [None])[-1] is not None:
        facts.append(f"{device['temperature_c'][-1]:.0f} °C")
    return ", ".join(str(fact) for fact in (*names, *facts) if fact)


def _plot(found: list[Point], slope: float, height: float) -> list[str]:
    """A text plot of latency over FLOPs, relative to the dense network, with the fitted line."""
    top = max(1.0, *(point.latency for point in found))
    grid = [[" "] * (_WIDTH + 1) for _ in range(_HEIGHT + 1)]

    def mark_at(x: float, y: float, mark: str) -> None:
        row, column = round(_HEIGHT * (1 - y / top)), round(_WIDTH * x)
        if 0 <= row <= _HEIGHT and 0 <= column <= _WIDTH:
            grid[row][column] = mark

    for column in range(_WIDTH + 1):
        mark_at(column / _WIDTH, height + slope * column / _WIDTH, "·")
    for point in found:
        mark_at(point.flops, point.latency, "●")
    edge = {0: f"{top:.2f}", _HEIGHT: "0"}
    lines = [f"{edge.get(i, ''):>7} │{''.join(row)}" for i, row in enumerate(grid)]
    axis = f"{'latency':>7} └{'─' * (_WIDTH + 1)}"
    return [*lines, axis, f"{'':>9}0{'FLOPs':^{_WIDTH - 1}}1"]
