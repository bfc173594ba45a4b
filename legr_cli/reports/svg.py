"""Draw charts as SVG; the style sheet of the page sets the colours."""

import math
from collections.abc import Callable
from html import escape

from legr_cli.reports.charts import BarChart, Heatmap, Plot, Series

WIDTH, HEIGHT = 440, 278
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 48  # margins, with room for axis labels
ROW_HEIGHT, LABEL_WIDTH = 18, 110
COLOURS = 9

ToPixels = Callable[[float, float], tuple[float, float]]  # data coordinates to SVG coordinates


def plot_svg(plot: Plot) -> str:
    """Draw a plot; each point has a tooltip and the index of its network in the table."""
    points = [point for series in plot.series for point in series.points]
    xs = _ticks([point.x for point in points])
    ys = _ticks([point.y + sign * point.error for point in points for sign in (-1, 1)])

    # x grows from the left margin; y grows upwards, while SVG counts from the top
    def to_pixels(x: float, y: float) -> tuple[float, float]:
        right = (x - xs[0]) / (xs[-1] - xs[0]) * (WIDTH - LEFT - RIGHT)
        up = (y - ys[0]) / (ys[-1] - ys[0]) * (HEIGHT - TOP - BOTTOM)
        return round(LEFT + right, 1), round(HEIGHT - BOTTOM - up, 1)

    parts = []
    for x in xs:
        left, bottom = to_pixels(x, ys[0])
        parts += [_grid_line(left, left, TOP, bottom), _label(left, bottom + 19, _number(x))]
    for y in ys:
        left, bottom = to_pixels(xs[0], y)
        parts.append(_grid_line(left, WIDTH - RIGHT, bottom, bottom))
        parts.append(_label(left - 5, bottom + 4, _number(y), "end"))
    parts.append(_label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, plot.x))
    height = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<g transform="rotate(-90 12 {height})">{_label(12, height, plot.y)}</g>')
    for number, series in enumerate(plot.series):
        parts += _series(series, number, to_pixels)
    return _svg(WIDTH, HEIGHT, plot.title, parts)


def _series(series: Series, number: int, to_pixels: ToPixels) -> list[str]:
    """Draw the line, error bars and points of a series."""
    pixels = [to_pixels(point.x, point.y) for point in series.points]
    parts = []
    if series.line and len(pixels) > 1:
        path = " ".join(f"{x},{y}" for x, y in pixels)
        parts.append(f'<polyline class="s{number % COLOURS}" points="{path}"/>')
    for point in series.points:
        if point.error:
            x, low = to_pixels(point.x, point.y - point.error)
            _, high = to_pixels(point.x, point.y + point.error)
            parts.append(f'<polyline class="s{number % COLOURS}" points="{x},{low} {x},{high}"/>')
    if series.markers:
        for (x, y), point in zip(pixels, series.points, strict=True):
            row = "" if point.row is None else f' data-net="{point.row}" tabindex="0"'
            tooltip = f"{series.name}: {point.label} ({_number(point.x)}, {_number(point.y)})"
            parts.append(
                f'<circle class="s{number % COLOURS}" cx="{x}" cy="{y}" r="4"{row}>'
                f"<title>{escape(tooltip)}</title></circle>"
            )
    return parts


def bars_svg(bars: BarChart) -> str:
    """Draw stacked horizontal bars, each with its total at the end."""
    longest = max((sum(values) for _, values in bars.rows), default=0.0) or 1.0
    scale = (WIDTH - LABEL_WIDTH - 60) / longest
    parts = []
    for row, (label, values) in enumerate(bars.rows):
        top, left = row * ROW_HEIGHT, float(LABEL_WIDTH)
        parts.append(_label(LABEL_WIDTH - 6, top + 13, label, "end"))
        for number, (name, value) in enumerate(zip(bars.parts, values, strict=True)):
            tooltip = f"{label}, {name}: {_number(value)} {bars.x}"
            parts.append(
                f'<rect class="s{number}" x="{left:.1f}" y="{top + 2}" width="{value * scale:.1f}" '
                f'height="{ROW_HEIGHT - 4}"><title>{escape(tooltip)}</title></rect>'
            )
            left += value * scale
        parts.append(_label(round(left + 5, 1), top + 13, f"{sum(values):.3g}", "start"))
    height = len(bars.rows) * ROW_HEIGHT + 20
    parts.append(_label((LABEL_WIDTH + WIDTH - 60) / 2, height - 4, bars.x))
    return _svg(WIDTH, height, bars.title, parts)


def heatmap_svg(heatmap: Heatmap) -> str:
    """Draw a heatmap: the darker a cell, the more channels are kept."""
    width = max(ROW_HEIGHT, min(60, (2 * WIDTH - LABEL_WIDTH) // len(heatmap.columns)))
    parts = []
    for row, (label, net, shares) in enumerate(heatmap.rows):
        top = row * ROW_HEIGHT
        parts.append(_label(LABEL_WIDTH - 6, top + 13, label, "end"))
        for column, share in enumerate(shares):
            tooltip = f"{heatmap.columns[column]}: {share:.0%} kept at {label}"
            opacity = 0.06 + 0.94 * share  # an empty cell stays visible
            parts.append(
                f'<rect class="cell" data-net="{net}" x="{LABEL_WIDTH + column * width}" y="{top}" '
                f'width="{width - 1}" height="{ROW_HEIGHT - 1}" fill-opacity="{opacity:.2f}">'
                f"<title>{escape(tooltip)}</title></rect>"
            )
    height = len(heatmap.rows) * ROW_HEIGHT + 18
    middle = LABEL_WIDTH + len(heatmap.columns) * width / 2
    parts.append(_label(middle, height - 4, f"layer 1 to {len(heatmap.columns)}"))
    return _svg(LABEL_WIDTH + len(heatmap.columns) * width, height, heatmap.title, parts)


def _grid_line(left: float, right: float, top: float, bottom: float) -> str:
    """Draw a grid line."""
    return f'<line class="grid" x1="{left}" x2="{right}" y1="{top}" y2="{bottom}"/>'


def _label(x: float, y: float, text: str, anchor: str = "middle") -> str:
    """Draw text."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: float, height: float, title: str, parts: list[str]) -> str:
    """Wrap parts in an SVG element that scales to the width of its container."""
    inside, label = "\n".join(parts), escape(title, quote=True)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">'
        f"\n{inside}\n</svg>"
    )


def _ticks(values: list[float]) -> list[float]:
    """Four to eight evenly spaced round numbers that enclose the values."""
    low, high = min(values), max(values)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * f for f in (1, 2, 2.5, 5, 10) if size * f >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def _number(number: float) -> str:
    """Format a number, without floating-point noise."""
    return f"{round(number, 10):.4g}"
