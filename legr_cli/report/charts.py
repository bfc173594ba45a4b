"""What a report draws, as plain data: points by series, and shares by layer."""

import math
from dataclasses import dataclass

from legr_cli.deploy.bench import fitted_slope, points
from legr_cli.report.collect import Comparison, Facts, Line, Net, Search, device_of, row_of
from legr_cli.targets import percents


@dataclass(frozen=True)
class Dot:
    """A point; `net` is the number of its row in the table."""

    x: float
    y: float
    label: str
    net: int | None = None
    spread: float = 0.0  # how far it may be off, up and down


@dataclass(frozen=True)
class Series:
    """Points of one kind, joined by a line or not."""

    name: str
    dots: list[Dot]
    joined: bool = True
    marked: bool = True  # points are shown


@dataclass(frozen=True)
class Plot:
    """A picture with two axes."""

    key: str  # for file names
    title: str
    x: str
    y: str
    series: list[Series]
    note: str = ""


@dataclass(frozen=True)
class Grid:
    """Shares by row and column: channels kept by network and layer."""

    key: str
    title: str
    columns: list[str]
    rows: list[tuple[str, int, list[float]]]  # label, number of the network, a share a column


@dataclass(frozen=True)
class Bars:
    """A bar for each row, made of parts that lie end to end."""

    key: str
    title: str
    x: str
    parts: list[str]
    rows: list[tuple[str, list[float]]]
    note: str = ""


def plots(facts: Facts) -> list[Plot]:
    """All pictures that there are facts for."""
    compared = [plot for found in facts.comparisons for plot in _compared(found)]
    made = compared or [_accuracy_by_flops(facts.nets)]
    made += _accuracy_by_latency(facts)
    made.append(latency_by_flops(facts.benches, facts.nets))
    for search in facts.searches:
        made += [_progress(search), *_rows(search)]
    return [plot for plot in made if any(series.dots for series in plot.series)]


def bars(facts: Facts) -> list[Bars]:
    """What every method cost, as shares of LeGR's whole cost, or in seconds without it."""
    made = []
    for found in facts.comparisons:
        legr = next((own for own in found.summarize if own.method == "legr"), None)
        unit = (legr.pruning.seconds + legr.tuning.seconds) if legr else 0.0
        rows = [
            (own.method, [s.seconds / (unit or 1.0) for s in (own.pruning, own.tuning)])
            for own in found.summarize
        ]
        targets = len({row["target"] for row in found.data["rows"]})
        made.append(
            Bars(
                f"cost-{found.name}",
                f"Cost of {targets} networks of {found.data['arch']}",
                "times LeGR's" if unit else "seconds",
                ["pruning", "tuning"],
                rows,
                "pruning: to find out what to remove; tuning: to train what is left. "
                "Seconds of one seed",
            )
        )
    return made


def _compared(found: Comparison) -> list[Plot]:
    """Accuracy by FLOPs and method, means over seeds: after tuning, and before."""
    dense = 100 * found.data["dense"]["accuracy"]
    made = []
    for key, title, mark in (
        ("accuracy", "Accuracy by FLOPs", "compare"),
        ("before", "Accuracy before tuning", "compare-before"),
    ):
        series = []
        for own in found.summarize:
            dots = [
                Dot(
                    100 * point.share,
                    100 * getattr(point, key),
                    f"{own.method} {point.share:.0%}",
                    spread=100 * (point.deviation or 0.0) if key == "accuracy" else 0.0,
                )
                for point in own.points.values()
            ]
            dots.append(Dot(100, dense, "dense"))
            series.append(Series(own.method, sorted(dots, key=lambda dot: dot.x)))
        seeds = len({row["seed"] for row in found.data["rows"]})
        made.append(
            Plot(
                f"{mark}-{found.name}",
                f"{title}: {found.data['arch']}",
                "FLOPs, % of dense",
                "test accuracy, %",
                series,
                f"means of {seeds} seeds; bars: one deviation" if seeds > 1 else "one seed",
            )
        )
    return made


def grids(facts: Facts) -> list[Grid]:
    """Where filters went: channels kept by layer, for the networks of each architecture."""
    by_layers: dict[tuple[str, ...], list[tuple[int, Net]]] = {}
    for i, net in enumerate(facts.nets):
        if net.widths:
            by_layers.setdefault(tuple(net.widths), []).append((i, net))
    made = []
    for number, (columns, nets) in enumerate(by_layers.items(), 1):
        rows = [(net.short, i, [kept / of for kept, of in net.widths.values()]) for i, net in nets]
        several = f" of {nets[0][1].arch}" if len(by_layers) > 1 else ""
        key = "channels" if number == 1 else f"channels-{number}"
        made.append(Grid(key, f"Channels kept{several}, by layer", list(columns), rows))
    return made


def _by_method(nets: list[Net]) -> dict[str, list[tuple[int, Net]]]:
    """Networks with their numbers, by method; the dense one ends every line."""
    dense = [(i, net) for i, net in enumerate(nets) if net.method == "dense"]
    found: dict[str, list[tuple[int, Net]]] = {}
    for i, net in enumerate(nets):
        if net.method != "dense":
            found.setdefault(net.prefix + net.method, []).append((i, net))
    for line in found.values():
        line += [(i, net) for i, net in dense if net.arch == line[0][1].arch]
    return found or {"dense": dense}


def _accuracy_by_flops(nets: list[Net]) -> Plot:
    """The trade-off curve."""
    series = []
    for method, line in _by_method(nets).items():
        dots = [
            Dot(100 * net.share, 100 * net.accuracy, net.label, i)
            for i, net in line
            if net.share is not None and net.accuracy is not None
        ]
        series.append(Series(method, sorted(dots, key=lambda dot: dot.x)))
    return Plot(
        "accuracy-flops", "Accuracy by FLOPs", "FLOPs, % of dense", "test accuracy, %", series
    )


def _accuracy_by_latency(facts: Facts) -> list[Plot]:
    """The same by milliseconds, a picture a device."""
    made = []
    for number, device in enumerate(dict.fromkeys(map(device_of, facts.benches)), 1):
        series = []
        for method, line in _by_method(facts.nets).items():
            dots = [
                Dot(latency.ms, 100 * net.accuracy, net.label, i)
                for i, net in line
                for latency in net.latencies
                if latency.device == device and net.accuracy is not None
            ]
            series.append(Series(method, sorted(dots, key=lambda dot: dot.x)))
        made.append(
            Plot(
                f"accuracy-latency-{number}",
                f"Accuracy by latency on {device}",
                "latency, ms",
                "test accuracy, %",
                series,
            )
        )
    return made


def latency_by_flops(benches: list[Line], nets: list[Net]) -> Plot:
    """Latency against FLOPs with its line, a series a device (the paper's figure 8)."""
    series, slopes = [], []
    for bench in benches:
        rows = [(row_of(net, bench), i) for i, net in enumerate(nets)]
        numbers = {row["name"]: i for row, i in reversed(rows) if row is not None}
        shown = list(points(bench).values())
        dots = [Dot(100 * p.flops, 100 * p.latency, p.name, numbers.get(p.name)) for p in shown]
        name = device_of(bench) + (f", {bench['against']}" if len(benches) > 1 else "")
        series.append(Series(name, dots, joined=False))
        line = fitted_slope(shown)
        if line is not None:
            slope, height = line
            ends = (min(dot.x for dot in dots), max(dot.x for dot in dots))
            fit = [Dot(x, slope * x + 100 * height, f"slope {slope:.2f}") for x in ends]
            series.append(Series(f"slope {slope:.2f}", fit, marked=False))
            slopes.append(f"{name}: {slope:.2f} of latency saved per FLOP saved")
    title = "Latency by FLOPs"
    return Plot(
        "latency-flops",
        title,
        "FLOPs, % of dense",
        "latency, % of dense",
        series,
        "; ".join(slopes),
    )


def _progress(search: Search) -> Plot:
    """What candidates reached, and the best so far."""
    dots, best, reached = [], [], -math.inf
    for i, line in enumerate(search.candidates, 1):
        accuracy = 100 * line["accuracy"]
        dots.append(Dot(i, accuracy, f"candidate {i}"))
        reached = max(reached, accuracy)
        best.append(Dot(i, reached, f"best of the first {i}"))
    settings = search.ranking.get("settings")
    at = settings.get("flops") if isinstance(settings, dict) else None
    shares = [share for share in (at if isinstance(at, list) else [at]) if isinstance(share, float)]
    return Plot(
        f"search-{search.file.stem}",
        f"Search for {search.file.name}",
        "candidate",
        "validation accuracy, %",
        [Series("candidates", dots, joined=False), Series("best so far", best, marked=False)],
        f"compared at {percents(shares)} of the FLOPs" if shares else "",
    )


def _rows(search: Search) -> list[Plot]:
    """α and κ by layer, if it has them."""
    layers = [row for row in search.ranking["layers"] if "scores" not in row]
    alpha = [
        Dot(i, math.log10(row["alpha"]), f"{row['name']}: α = {row['alpha']:.3g}")
        for i, row in enumerate(layers, 1)
        if row["alpha"] > 0
    ]
    kappa = [
        Dot(i, row["kappa"], f"{row['name']}: κ = {row['kappa']:.3g}")
        for i, row in enumerate(layers, 1)
    ]
    name = search.file.stem
    return [
        Plot(f"alpha-{name}", "α by layer", "layer", "log₁₀ α", [Series("α", alpha)]),
        Plot(f"kappa-{name}", "κ by layer", "layer", "κ", [Series("κ", kappa)]),
    ]
