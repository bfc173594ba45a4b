"""Draw charts as image files, and a search as an animation, with matplotlib."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from legr_cli.reports.charts import BarChart, Heatmap, Plot

MAX_FRAMES = 80  # in an animation


def save_plot(plot: Plot, path: Path, kind: str) -> None:
    """Save a plot as svg, png or pdf."""
    figure, axes = _new_axes(plot)
    for series in plot.series:
        errors = [point.error for point in series.points]
        axes.errorbar(
            [point.x for point in series.points],
            [point.y for point in series.points],
            errors if any(errors) else None,
            linestyle="-" if series.line else "",
            marker="o" if series.markers else "",
            markersize=4,
            label=_escape_dollars(series.name),
        )
    if len(plot.series) > 1:
        axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, format=kind, dpi=200)


def save_bars(bars: BarChart, path: Path, kind: str) -> None:
    """Save a bar chart as svg, png or pdf."""
    figure = Figure(figsize=(5, 1.2 + 0.26 * len(bars.rows)), layout="constrained")
    axes = figure.add_subplot()
    labels, left = [_escape_dollars(label) for label, _ in bars.rows], np.zeros(len(bars.rows))
    for number, part in enumerate(bars.parts):
        values = np.array([row[number] for _, row in bars.rows])
        axes.barh(labels, values, left=left, label=part)
        left += values
    axes.invert_yaxis()
    axes.set(title=_escape_dollars(bars.title), xlabel=bars.x)
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, format=kind, dpi=200)


def save_heatmap(heatmap: Heatmap, path: Path, kind: str) -> None:
    """Save a heatmap as svg, png or pdf."""
    figure = Figure(figsize=(6.4, 1 + 0.24 * len(heatmap.rows)), layout="constrained")
    axes = figure.add_subplot()
    shares = [row for _, _, row in heatmap.rows]
    image = axes.imshow(shares, aspect="auto", cmap="Blues", vmin=0, vmax=1)
    axes.set_yticks(
        range(len(heatmap.rows)), [label for label, _, _ in heatmap.rows], fontsize="small"
    )
    axes.set(title=heatmap.title, xlabel="layer")
    figure.colorbar(image, label="share kept")
    figure.savefig(path, format=kind, dpi=200)


def animate(plot: Plot, path: Path) -> None:
    """Save the plot of a search as a GIF in which candidates appear one by one."""
    from PIL import Image

    candidates, best = (series.points for series in plot.series)
    figure, axes = _new_axes(plot)
    ys = [point.y for point in candidates]
    margin = 2 if plot.y.endswith("%") else 0.1 * (max(ys) - min(ys)) or 1
    axes.set(xlim=(0, len(ys) + 1), ylim=(min(ys) - margin, max(ys) + margin))
    (dots,) = axes.plot([], [], "o", markersize=3, label="candidates")
    (line,) = axes.plot([], [], "-", label="best so far")
    axes.legend(frameon=False, loc="lower right", fontsize="small")
    canvas, frames = FigureCanvasAgg(figure), []
    stride = -(-len(ys) // MAX_FRAMES)  # rounded up, so at most MAX_FRAMES frames
    for count in (*range(1, len(ys), stride), len(ys)):
        for artist, points in ((dots, candidates[:count]), (line, best[:count])):
            artist.set_data([point.x for point in points], [point.y for point in points])
        canvas.draw()
        frames.append(Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("P"))
    durations = [100] * (len(frames) - 1) + [1500]
    frames[0].save(
        path, format="GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0
    )


def _escape_dollars(text: str) -> str:
    """Escape dollar signs: matplotlib renders text between two of them as a formula."""
    return text.replace("$", r"\$")


def _new_axes(plot: Plot) -> tuple[Figure, Axes]:
    """Create axes with title, labels and a grid."""
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=_escape_dollars(plot.title), xlabel=plot.x, ylabel=plot.y)
    axes.grid(alpha=0.3)
    return figure, axes
