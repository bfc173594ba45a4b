"""One page that needs nothing else: the pictures, the networks, and how they were made."""

import os
import platform
import string
from html import escape
from pathlib import Path
from urllib.parse import quote

from legr_cli import __version__
from legr_cli.report.charts import Bars, Grid, Plot, bars, grids, plots
from legr_cli.report.collect import Facts, Net, device_of
from legr_cli.report.svg import COLOURS, drawn, stacked, tiled

TEMPLATE = Path(__file__).with_name("page.html")


def page(facts: Facts, folder: Path) -> str:
    """The page, whose links lead from `folder` to the networks' files."""
    template = string.Template(TEMPLATE.read_text(encoding="utf-8"))
    figures = [_figure(plot) for plot in plots(facts)]
    figures += [_bars(found) for found in bars(facts)]
    figures += [_tiles(found) for found in grids(facts)]
    archs = list(dict.fromkeys(net.arch for net in facts.nets))
    title = f"legr: {', '.join(archs)}" if archs else "legr"
    return template.substitute(
        title=escape(title),
        summary=escape(_summary(facts)),
        colours="\n".join(
            f"polyline.s{i} {{ stroke: var(--c{i}); }} circle.s{i}, rect.s{i}, i.s{i} "
            f"{{ fill: var(--c{i}); background: var(--c{i}); }}"
            for i in range(COLOURS)
        ),
        figures="\n".join(figures),
        table=_table(facts.nets, folder),
        commands=_commands(facts),
        versions=escape(_versions(facts)),
    )


def _summary(facts: Facts) -> str:
    """What is on the page, in a line."""
    devices = list(dict.fromkeys(map(device_of, facts.benches)))
    count = len(facts.nets)
    parts = [f"{count} network{'s' if count > 1 else ''}" if count else ""]
    parts += [f"timed on {', '.join(devices)}" if devices else ""]
    tried = sum(len(search.candidates) for search in facts.searches)
    parts += [f"{tried} candidates searched" if tried else ""]
    more = "FLOPs by fvcore, one multiply-add = 1. Pick a point to see its row."
    return "; ".join(part for part in parts if part) + ". " + more


def _figure(plot: Plot) -> str:
    """A plot with its title, what the colours mean, and a note."""
    shown = [(i, s.name) for i, s in enumerate(plot.series) if s.dots]
    return _framed(plot.title, shown, drawn(plot), plot.note)


def _bars(found: Bars) -> str:
    """The same for bars."""
    return _framed(found.title, list(enumerate(found.parts)), stacked(found), found.note)


def _framed(title: str, shown: list[tuple[int, str]], picture: str, note: str) -> str:
    """A picture with its title, what the colours mean, and a note."""
    keys = "".join(
        f'<span><i class="s{i % COLOURS}"></i>{escape(name)}</span>' for i, name in shown
    )
    key = f'<div class="key">{keys}</div>' if len(shown) > 1 else ""
    caption = f"<figcaption>{escape(note)}</figcaption>" if note else ""
    return f"<figure><h2>{escape(title)}</h2>{key}{picture}{caption}</figure>"


def _tiles(found: Grid) -> str:
    """A grid with its title and the layers of its columns."""
    names = found.columns
    names = names if len(names) <= 12 else [names[0], "…", names[-1]]
    note = f"a row for each network, a column for each layer ({', '.join(names)}); dark: all kept"
    return (
        f'<figure class="wide tiles"><h2>{escape(found.title)}</h2>{tiled(found)}'
        f"<figcaption>{escape(note)}</figcaption></figure>"
    )


def _table(nets: list[Net], folder: Path) -> str:
    """A row for each network, to be sorted by any column."""
    if not nets:
        return ""
    devices = list(dict.fromkeys(latency.device for net in nets for latency in net.latencies))
    columns: dict[str, list[float | None]] = {
        "FLOPs, M": [net.flops and net.flops / 1e6 for net in nets],
        "% of dense": [net.share and 100 * net.share for net in nets],
        "test accuracy, %": [_percent(net.accuracy) for net in nets],
        "before tuning (validation), %": [_percent(net.before) for net in nets],
    }
    for device in devices:
        ms = [{latency.device: latency.ms for latency in net.latencies} for net in nets]
        columns[f"ms on {device}"] = [found.get(device) for found in ms]
    shown = {name: column for name, column in columns.items() if any(column)}
    heads = ["network", *shown, "file"]
    head = "".join(f'<th scope="col"><button>{escape(text)}</button></th>' for text in heads)
    rows = []
    for i, net in enumerate(nets):
        cells = "".join(_cell(column[i]) for column in shown.values())
        label, name = escape(net.label, quote=True), escape(net.file.name, quote=True)
        link = escape(quote(os.path.relpath(net.file.resolve(), folder.resolve())), quote=True)
        place = f'<a href="{link}">{name}</a>' if net.file.exists() else name
        rows.append(
            f'<tr data-net="{i}"><td data-value="{label}">{label}</td>{cells}'
            f'<td data-value="{name}">{place}</td></tr>'
        )
    return (
        '<section class="wide"><h2>Networks</h2><table><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></section>"
    )


def _percent(share: float | None) -> float | None:
    """A share in per cent, if there is one."""
    return None if share is None else 100 * share


def _cell(number: float | None) -> str:
    """A number of the table, or nothing."""
    if number is None:
        return '<td data-value=""></td>'
    return f'<td data-value="{number}">{number:.4g}</td>'


def _commands(facts: Facts) -> str:
    """Everything that was typed, each once, in the order of making."""
    rankings = (search.ranking for search in facts.searches)
    made = [str(ranking["command"]) for ranking in rankings if "command" in ranking]
    others = [*facts.benches, *(found.data for found in facts.comparisons)]
    timed = [text for line in others for text in str(line.get("command", "")).splitlines()]
    chains = [net.commands for net in facts.nets]
    longest = max(map(len, chains), default=0)
    steps = [chain[i] for i in range(longest) for chain in chains if i < len(chain)]
    lines = list(dict.fromkeys([*steps[:1], *made, *steps[1:], *timed]))
    if not lines:
        return ""
    return (
        '<section class="wide"><h2>Commands</h2><p>What made all this.</p>'
        f"<pre>{escape(chr(10).join(lines))}</pre></section>"
    )


def _versions(facts: Facts) -> str:
    """What everything was made with."""
    found = {"legr": {__version__}, "python": {platform.python_version()}}
    for net in facts.nets:
        for name, version in net.made_with.items():
            found.setdefault(name, set()).add(version)
    for bench in facts.benches:
        found.setdefault("runtime", set()).add(str(bench["device"].get("runtime")))
    parts = [f"{name} {', '.join(sorted(versions))}" for name, versions in found.items()]
    return "Made with " + "; ".join(parts) + "."
