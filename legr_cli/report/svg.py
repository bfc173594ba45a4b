"""Plots and grids as SVG for a page: no colours of their own, which the page's style gives."""

import math
from collections.abc import Callable
from html import escape

from legr_cli.report.charts import Bars, Grid, Plot, Series

WIDE, HIGH = 440, 278
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 48  # what is left for the axes
CELL, LABEL = 18, 110
COLOURS = 9

Place = Callable[[float, float], tuple[float, float]]  # of a point in the picture


def drawn(plot: Plot) -> str:
    """A plot; its points tell what they are, and the number of their network."""
    dots = [dot for series in plot.series for dot in series.dots]
    xs = _ticks([dot.x for dot in dots])
    ys = _ticks([dot.y + off for dot in dots for off in (-dot.spread, dot.spread)])

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - xs[0]) / (xs[-1] - xs[0]) * (WIDE - LEFT - RIGHT)
        up = (y - ys[0]) / (ys[-1] - ys[0]) * (HIGH - TOP - BOTTOM)
        return round(LEFT + across, 1), round(HIGH - BOTTOM - up, 1)

    parts = []
    for x in xs:
        left, bottom = at(x, ys[0])
        parts += [_rule(left, left, TOP, bottom), _word(left, bottom + 19, _text(x))]
    for y in ys:
        left, bottom = at(xs[0], y)
        parts.append(_rule(left, WIDE - RIGHT, bottom, bottom))
        parts.append(_word(left - 5, bottom + 4, _text(y), "end"))
    parts.append(_word((LEFT + WIDE - RIGHT) / 2, HIGH - 6, plot.x))
    height = (TOP + HIGH - BOTTOM) / 2
    parts.append(f'<g transform="rotate(-90 12 {height})">{_word(12, height, plot.y)}</g>')
    for number, series in enumerate(plot.series):
        parts += _series(series, number, at)
    return _svg(WIDE, HIGH, plot.title, parts)


def _series(series: Series, number: int, at: Place) -> list[str]:
    """A line and its points."""
    places = [at(dot.x, dot.y) for dot in series.dots]
    parts = []
    if series.joined and len(places) > 1:
        path = " ".join(f"{x},{y}" for x, y in places)
        parts.append(f'<polyline class="s{number % COLOURS}" points="{path}"/>')
    for dot in series.dots:
        if dot.spread:
            (x, low), (_, high) = at(dot.x, dot.y - dot.spread), at(dot.x, dot.y + dot.spread)
            parts.append(f'<polyline class="s{number % COLOURS}" points="{x},{low} {x},{high}"/>')
    if series.marked:
        for (x, y), dot in zip(places, series.dots, strict=True):
            net = "" if dot.net is None else f' data-net="{dot.net}" tabindex="0"'
            tip = f"{series.name}: {dot.label} ({_text(dot.x)}, {_text(dot.y)})"
            parts.append(
                f'<circle class="s{number % COLOURS}" cx="{x}" cy="{y}" r="4"{net}>'
                f"<title>{escape(tip)}</title></circle>"
            )
    return parts


def stacked(bars: Bars) -> str:
    """Bars from the left, and what each comes to at its end."""
    most = max((sum(values) for _, values in bars.rows), default=0.0) or 1.0
    scale = (WIDE - LABEL - 60) / most
    parts = []
    for row, (label, values) in enumerate(bars.rows):
        top, left = row * CELL, float(LABEL)
        parts.append(_word(LABEL - 6, top + 13, label, "end"))
        for number, (name, value) in enumerate(zip(bars.parts, values, strict=True)):
            tip = f"{label}, {name}: {_text(value)} {bars.x}"
            parts.append(
                f'<rect class="s{number}" x="{left:.1f}" y="{top + 2}" width="{value * scale:.1f}" '
                f'height="{CELL - 4}"><title>{escape(tip)}</title></rect>'
            )
            left += value * scale
        parts.append(_word(round(left + 5, 1), top + 13, f"{sum(values):.3g}", "start"))
    high = len(bars.rows) * CELL + 20
    parts.append(_word((LABEL + WIDE - 60) / 2, high - 4, bars.x))
    return _svg(WIDE, high, bars.title, parts)


def tiled(grid: Grid) -> str:
    """A grid: the darker, the more channels are kept."""
    width = max(CELL, min(60, (2 * WIDE - LABEL) // len(grid.columns)))
    parts = []
    for row, (label, net, shares) in enumerate(grid.rows):
        top = row * CELL
        parts.append(_word(LABEL - 6, top + 13, label, "end"))
        for column, share in enumerate(shares):
            tip = f"{grid.columns[column]}: {share:.0%} kept at {label}"
            parts.append(
                f'<rect class="cell" data-net="{net}" x="{LABEL + column * width}" y="{top}" '
                f'width="{width - 1}" height="{CELL - 1}" fill-opacity="{0.06 + 0.94 * share:.2f}">'
                f"<title>{escape(tip)}</title></rect>"
            )
    high = len(grid.rows) * CELL + 18
    middle = LABEL + len(grid.columns) * width / 2
    parts.append(_word(middle, high - 4, f"layer 1 to {len(grid.columns)}"))
    return _svg(LABEL + len(grid.columns) * width, high, grid.title, parts)


def _rule(left: float, right: float, top: float, bottom: float) -> str:
    """A line of the grid behind a plot."""
    return f'<line class="grid" x1="{left}" x2="{right}" y1="{top}" y2="{bottom}"/>'


def _word(x: float, y: float, text: str, anchor: str = "middle") -> str:
    """A label."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(wide: float, high: float, title: str, parts: list[str]) -> str:
    """A picture that is as wide as its place."""
    inside = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {wide:g} {high:g}" role="img" aria-label="{escape(title, quote=True)}">'
        f"\n{inside}\n</svg>"
    )


def _ticks(values: list[float]) -> list[float]:
    """Four to eight round numbers around values, evenly apart."""
    low, high = min(values), max(values)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * f for f in (1, 2, 2.5, 5, 10) if size * f >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def _text(number: float) -> str:
    """A number without what rounding left behind."""
    return f"{round(number, 10):.4g}"
