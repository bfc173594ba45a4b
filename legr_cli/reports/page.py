"""Render a report as one self-contained HTML page."""

import os
import platform
import string
from html import escape
from pathlib import Path
from urllib.parse import quote

from legr_cli.reports.charts import BarChart, Heatmap, Plot, bar_charts, heatmaps, plots
from legr_cli.reports.records import Measure, NetworkRecord, ReportData
from legr_cli.reports.svg import COLOURS, bars_svg, heatmap_svg, plot_svg
from legr_cli.training.scores import plotted, with_unit
from legr_cli.version import __version__

TEMPLATE = Path(__file__).with_name("page.html")


def page(data: ReportData, folder: Path) -> str:
    """Render the page; links to network files are relative to `folder`."""
    template = string.Template(TEMPLATE.read_text(encoding="utf-8"))
    figures = [_plot_figure(plot) for plot in plots(data)]
    figures += [_bars_figure(chart) for chart in bar_charts(data)]
    figures += [_heatmap_figure(heatmap) for heatmap in heatmaps(data)]
    archs = list(dict.fromkeys(network.arch for network in data.networks))
    title = f"legr: {', '.join(archs)}" if archs else "legr"
    return template.substitute(
        title=escape(title),
        summary=escape(_summary(data)),
        colours="\n".join(
            f"polyline.s{i} {{ stroke: var(--c{i}); }} circle.s{i}, rect.s{i}, i.s{i} "
            f"{{ fill: var(--c{i}); background: var(--c{i}); }}"
            for i in range(COLOURS)
        ),
        figures="\n".join(figures),
        table=_table(data, folder),
        commands=_commands(data),
        versions=escape(_versions(data)),
    )


def _summary(data: ReportData) -> str:
    """Summarize the page in one line."""
    count, devices = len(data.networks), data.devices
    parts = [f"{count} network{'s' if count > 1 else ''}" if count else ""]
    parts += [f"timed on {', '.join(devices)}" if devices else ""]
    candidates = sum(len(search.candidates) for search in data.searches)
    parts += [f"{candidates} candidates evaluated" if candidates else ""]
    hint = "FLOPs are counted by fvcore (one multiply-add = 1). Click a point to see its row."
    contents = "; ".join(part for part in parts if part)
    return f"{contents}. {hint}" if contents else hint


def _plot_figure(plot: Plot) -> str:
    """Render a plot with its title, legend and caption."""
    legend = [(i, s.name) for i, s in enumerate(plot.series) if s.points]
    return _figure(plot.title, legend, plot_svg(plot), plot.note)


def _bars_figure(chart: BarChart) -> str:
    """Render a bar chart with its title, legend and caption."""
    return _figure(chart.title, list(enumerate(chart.parts)), bars_svg(chart), chart.note)


def _figure(title: str, legend: list[tuple[int, str]], svg: str, note: str) -> str:
    """Render a chart with its title, a caption and, for several series, a legend."""
    keys = "".join(
        f'<span><i class="s{i % COLOURS}"></i>{escape(name)}</span>' for i, name in legend
    )
    key = f'<div class="key">{keys}</div>' if len(legend) > 1 else ""
    caption = f"<figcaption>{escape(note)}</figcaption>" if note else ""
    return f"<figure><h2>{escape(title)}</h2>{key}{svg}{caption}</figure>"


def _heatmap_figure(heatmap: Heatmap) -> str:
    """Render a heatmap with its title and a caption that names its columns."""
    names = heatmap.columns
    names = names if len(names) <= 12 else [names[0], "…", names[-1]]
    note = (
        f"One row per network, one column per layer ({', '.join(names)}); darker means more kept."
    )
    return (
        f'<figure class="wide tiles"><h2>{escape(heatmap.title)}</h2>{heatmap_svg(heatmap)}'
        f"<figcaption>{escape(note)}</figcaption></figure>"
    )


def _table(data: ReportData, folder: Path) -> str:
    """Render the table of networks, sortable by any column."""
    networks = data.networks
    if not networks:
        return ""
    devices = list(dict.fromkeys(latency.device for net in networks for latency in net.latencies))
    columns: dict[str, list[float | None]] = {
        "FLOPs, M": [net.flops and net.flops / 1e6 for net in networks],
        "% of dense": [net.share and 100 * net.share for net in networks],
    }
    for measure in data.measures:
        columns |= _score_columns(networks, measure, several=len(data.measures) > 1)
    for device in devices:
        ms = [{latency.device: latency.ms for latency in net.latencies} for net in networks]
        columns[f"ms on {device}"] = [by_device.get(device) for by_device in ms]
    shown = {name: column for name, column in columns.items() if _has_numbers(column)}
    heads = ["network", *shown, "file"]
    head = "".join(f'<th scope="col"><button>{escape(text)}</button></th>' for text in heads)
    rows = []
    for i, net in enumerate(networks):
        cells = "".join(_cell(column[i]) for column in shown.values())
        label, name = escape(net.label, quote=True), escape(net.file.name, quote=True)
        link = escape(quote(os.path.relpath(net.file.resolve(), folder.resolve())), quote=True)
        file = f'<a href="{link}">{name}</a>' if net.file.exists() else name
        rows.append(
            f'<tr data-net="{i}"><td data-value="{label}">{label}</td>{cells}'
            f'<td data-value="{name}">{file}</td></tr>'
        )
    return (
        '<section class="wide"><h2>Networks</h2><table><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></section>"
    )


def _score_columns(
    networks: list[NetworkRecord], measure: Measure, several: bool
) -> dict[str, list[float | None]]:
    """The columns of one measure; with several on the page, each says which one it is."""
    what = f": {measure.split} {measure.name}" if several else ""
    earlier = f": {measure.name}" if several else ""
    titles = {
        "cut": with_unit(f"cut{what}", measure.name),
        "repaired": with_unit(f"repaired{what}", measure.name),
        "final": measure.axis,
        "before": with_unit(f"before fine-tuning (validation){earlier}", measure.name),
    }
    return {
        title: [_plotted(measure, getattr(net.at(measure), stage)) for net in networks]
        for stage, title in titles.items()
    }


def _has_numbers(column: list[float | None]) -> bool:
    """Whether there is anything to show."""
    return any(number is not None for number in column)


def _plotted(measure: Measure, figure: float | None) -> float | None:
    """Convert a share to a percentage; None stays None."""
    return None if figure is None else plotted(measure.name, figure)


def _cell(number: float | None) -> str:
    """Render a table cell, empty if there is no number."""
    if number is None:
        return '<td data-value=""></td>'
    return f'<td data-value="{number}">{number:.4g}</td>'


def _commands(data: ReportData) -> str:
    """Render the commands that produced the results, each once, in the order of a workflow.

    The dense network comes first, then rankings, then pruning and fine-tuning, then measurements.
    """
    learned = [search.command for search in data.searches if search.command is not None]
    measured = [bench.command for bench in data.benches]
    measured += [command for comparison in data.comparisons for command in comparison.commands]
    chains = [network.commands for network in data.networks]
    longest = max(map(len, chains), default=0)
    steps = [chain[i] for i in range(longest) for chain in chains if i < len(chain)]
    commands = [*steps[:1], *learned, *steps[1:]]
    commands += [line for command in measured for line in command.splitlines()]
    lines = list(dict.fromkeys(commands))
    if not lines:
        return ""
    return (
        '<section class="wide"><h2>Commands</h2><p>The commands that produced these results.</p>'
        f"<pre>{escape(chr(10).join(lines))}</pre></section>"
    )


def _versions(data: ReportData) -> str:
    """List the versions of the software behind the results."""
    used = {"legr": {__version__}, "python": {platform.python_version()}}
    for network in data.networks:
        for name, version in network.made_with.items():
            used.setdefault(name, set()).add(version)
    for bench in data.benches:
        used.setdefault("runtime", set()).add(bench.runtime)
    parts = [f"{name} {', '.join(sorted(versions))}" for name, versions in used.items()]
    return "Made with " + "; ".join(parts) + "."
