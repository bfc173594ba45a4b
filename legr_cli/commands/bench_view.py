"""Latencies as people see them: a table, what is doubtful, and a plot."""

from typing import Any

from legr_cli.commands import output
from legr_cli.deploy.bench import Point, fitted_slope, points

_WIDE, _HIGH = 48, 12


def table(whole: dict[str, Any]) -> None:
    """One measurement on stdout."""
    screen = output.console(stderr=False)
    known = points(whole)
    columns = ("network", "FLOPs", "ms", "p5", "p95", "ratio", "±", "slope")
    made = output.table(title(whole), *columns, left=("network",))
    for row in whole["models"]:
        point = known.get(row["name"])
        slope = None if point is None else point.slope
        low, high = row["ratio_range"]
        made.add_row(
            row["name"],
            output.count(row["flops"]) if row.get("flops") else "",
            *(f"{row[key]:.3g}" for key in ("median_ms", "p5_ms", "p95_ms")),
            f"{row['ratio']:.3f}",
            f"{(high - low) / 2:.3f}",
            "" if slope is None else f"{slope:.2f}",
        )
    output.put(screen, made)
    found = list(known.values())
    line = fitted_slope(found)
    if line is not None:
        for text in drawn(found, *line):
            screen.print(text)
        screen.print(f"slope {line[0]:.2f}: latency saved per FLOP saved, by all networks together")
    worst = max((row.get("difference") or 0.0 for row in whole["models"]), default=0.0)
    if worst:
        output.console().print(
            f"exported networks differ from torch by {worst:.0e} at most", style="dim"
        )
    for note in whole["notes"]:
        output.console().print(str(note), style="dim")


def title(whole: dict[str, Any]) -> str:
    """`Cortex-A57, 1 thread on core 3, onnxruntime 1.19.2`."""
    device, settings = whole["device"], whole.get("settings", {})
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


def drawn(found: list[Point], slope: float, height: float) -> list[str]:
    """Latency over FLOPs, both as shares of the dense network's, and the line nearest to them."""
    top = max(1.0, *(point.latency for point in found))
    grid = [[" "] * (_WIDE + 1) for _ in range(_HIGH + 1)]

    def put(x: float, y: float, mark: str) -> None:
        row, column = round(_HIGH * (1 - y / top)), round(_WIDE * x)
        if 0 <= row <= _HIGH and 0 <= column <= _WIDE:
            grid[row][column] = mark

    for column in range(_WIDE + 1):
        put(column / _WIDE, height + slope * column / _WIDE, "·")
    for point in found:
        put(point.flops, point.latency, "●")
    edge = {0: f"{top:.2f}", _HIGH: "0"}
    lines = [f"{edge.get(i, ''):>7} │{''.join(row)}" for i, row in enumerate(grid)]
    axis = f"{'latency':>7} └{'─' * (_WIDE + 1)}"
    return [*lines, axis, f"{'':>9}0{'FLOPs':^{_WIDE - 1}}1"]
