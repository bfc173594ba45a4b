"""The same pictures for papers and slides, by matplotlib, and a search that moves."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from legr_cli.report.charts import Bars, Grid, Plot

FRAMES = 80  # of an animation, at most


def save_plot(plot: Plot, path: Path, kind: str) -> None:
    """A plot as svg, png or pdf."""
    figure, axes = _empty(plot)
    for series in plot.series:
        xs, ys = [dot.x for dot in series.dots], [dot.y for dot in series.dots]
        line, mark = "-" if series.joined else "", "o" if series.marked else ""
        off = [dot.spread for dot in series.dots]
        axes.errorbar(
            xs,
            ys,
            off if any(off) else None,
            linestyle=line,
            marker=mark,
            markersize=4,
            label=_plain(series.name),
        )
    if len(plot.series) > 1:
        axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, format=kind, dpi=200)


def save_bars(bars: Bars, path: Path, kind: str) -> None:
    """Bars as svg, png or pdf."""
    figure = Figure(figsize=(5, 1.2 + 0.26 * len(bars.rows)), layout="constrained")
    axes = figure.add_subplot()
    labels, left = [_plain(label) for label, _ in bars.rows], np.zeros(len(bars.rows))
    for number, part in enumerate(bars.parts):
        values = np.array([row[number] for _, row in bars.rows])
        axes.barh(labels, values, left=left, label=part)
        left += values
    axes.invert_yaxis()
    axes.set(title=_plain(bars.title), xlabel=bars.x)
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, format=kind, dpi=200)


def save_grid(grid: Grid, path: Path, kind: str) -> None:
    """A grid as svg, png or pdf."""
    figure = Figure(figsize=(6.4, 1 + 0.24 * len(grid.rows)), layout="constrained")
    axes = figure.add_subplot()
    shares = [row for _, _, row in grid.rows]
    picture = axes.imshow(shares, aspect="auto", cmap="Blues", vmin=0, vmax=1)
    axes.set_yticks(range(len(grid.rows)), [label for label, _, _ in grid.rows], fontsize="small")
    axes.set(title=grid.title, xlabel="layer")
    figure.colorbar(picture, label="share kept")
    figure.savefig(path, format=kind, dpi=200)


def animate(plot: Plot, path: Path) -> None:
    """A search as it went: candidates appear, and the best so far rises."""
    from PIL import Image

    candidates, best = (series.dots for series in plot.series)
    figure, axes = _empty(plot)
    heights = [dot.y for dot in candidates]
    axes.set(xlim=(0, len(heights) + 1), ylim=(min(heights) - 2, max(heights) + 2))
    (dots,) = axes.plot([], [], "o", markersize=3, label="candidates")
    (line,) = axes.plot([], [], "-", label="best so far")
    axes.legend(frameon=False, loc="lower right", fontsize="small")
    canvas, frames = FigureCanvasAgg(figure), []
    for count in (*range(1, len(heights), -(-len(heights) // FRAMES)), len(heights)):
        for drawn, shown in ((dots, candidates[:count]), (line, best[:count])):
            drawn.set_data([dot.x for dot in shown], [dot.y for dot in shown])
        canvas.draw()
        frames.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("P"))
    durations = [100] * (len(frames) - 1) + [1500]
    frames[0].save(
        path, format="GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0
    )


def _plain(text: str) -> str:
    """A name as it is: matplotlib takes what stands between dollars for mathematics."""
    return text.replace("$", r"\$")


def _empty(plot: Plot) -> tuple[Figure, Axes]:
    """Axes with their names."""
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=_plain(plot.title), xlabel=plot.x, ylabel=plot.y)
    axes.grid(alpha=0.3)
    return figure, axes
