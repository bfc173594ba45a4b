"""Figures for papers, slides and pages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from legr_cli.deploy.bench import fitted_slope, points
from legr_cli.errors import BenchError


def latency_over_flops(found: Sequence[dict[str, Any]], path: Path, kind: str) -> None:
    """Latency against FLOPs, a series a device, each with its line (the paper's figure 8)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for whole in found:
        shown = list(points(whole).values())
        if not shown:
            raise BenchError(
                "--plot needs FLOPs, which these networks do not tell: export them with legr"
            )
        device = whole["device"].get("board") or whole["device"].get("cpu") or "?"
        xs = [100 * point.flops for point in shown]
        dots = axes.scatter(xs, [100 * point.latency for point in shown], zorder=3)
        line = fitted_slope(shown)
        if line is not None:
            slope, height = line
            ends = [min(xs), max(xs)]
            drawn = [slope * x + 100 * height for x in ends]
            axes.plot(ends, drawn, color=dots.get_facecolor()[0], lw=1)
            device += f", slope {slope:.2f}"
        dots.set_label(device)
    axes.set(xlabel="FLOPs, % of dense", ylabel="latency, % of dense", xlim=(0, 105))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, format=kind, dpi=200)
