"""The charts of a report as plain data, independent of how they are drawn."""

import math
from dataclasses import dataclass
from itertools import accumulate

from legr_cli.baselines.summary import MethodSummary
from legr_cli.deploy.slope import fitted_slope
from legr_cli.reports.records import (
    BenchRecord,
    CandidateRecord,
    ComparisonRecord,
    Measure,
    NetworkRecord,
    ReportData,
    SearchRecord,
)
from legr_cli.targets import percents
from legr_cli.training.scores import plotted

FLOPS_AXIS = "FLOPs, % of dense"
Numbered = list[tuple[int, NetworkRecord]]  # networks with their row numbers in the table


@dataclass(frozen=True)
class DataPoint:
    """A point of a series; `row` is the index of its network in the table, if it is there."""

    x: float
    y: float
    label: str
    row: int | None = None
    error: float = 0.0  # half the height of the error bar


@dataclass(frozen=True)
class Series:
    """Points that share a colour and a name in the legend."""

    name: str
    points: list[DataPoint]
    line: bool = True  # connect the points
    markers: bool = True  # show the points


@dataclass(frozen=True)
class Plot:
    """A chart with two axes."""

    key: str  # stem of the image file
    title: str
    x: str
    y: str
    series: list[Series]
    note: str = ""


@dataclass(frozen=True)
class Heatmap:
    """Share of channels kept, by network (row) and layer (column)."""

    key: str
    title: str
    columns: list[str]
    rows: list[tuple[str, int, list[float]]]  # label, row in the table, a share per column


@dataclass(frozen=True)
class BarChart:
    """Stacked horizontal bars."""

    key: str
    title: str
    x: str
    parts: list[str]  # names of the segments of a bar
    rows: list[tuple[str, list[float]]]  # label, a length per segment
    note: str = ""


def plots(data: ReportData) -> list[Plot]:
    """Every plot that has points."""
    drawn = [plot for comparison in data.comparisons for plot in _method_curves(comparison)]
    drawn = drawn or [_score_by_flops(data.networks, measure) for measure in data.measures]
    drawn += _score_by_latency(data)
    drawn.append(latency_by_flops(data.benches, data.networks))
    for search in data.searches:
        drawn += [_search_progress(search), *_layer_parameters(search)]
    return [plot for plot in drawn if any(series.points for series in plot.series)]


def bar_charts(data: ReportData) -> list[BarChart]:
    """Cost of each method relative to LeGR's total, or in seconds if LeGR was not compared."""
    charts = []
    for comparison in data.comparisons:
        summaries = comparison.summaries
        legr = next((summary for summary in summaries if summary.method == "legr"), None)
        unit = legr.total_seconds if legr else 0.0
        rows = [
            (s.method, [effort.seconds / (unit or 1.0) for effort in (s.pruning, s.tuning)])
            for s in summaries
        ]
        targets = len({row.target for row in comparison.rows})
        charts.append(
            BarChart(
                f"cost-{comparison.name}",
                f"Cost of {targets} networks of {comparison.arch}",
                "relative to LeGR" if unit else "seconds",
                ["pruning", "tuning"],
                rows,
                "Wall-clock time per seed. Pruning: deciding what to remove; "
                "tuning: fine-tuning the pruned networks.",
            )
        )
    return charts


def _method_curves(comparison: ComparisonRecord) -> list[Plot]:
    """Score by FLOPs of each method after fine-tuning and before, averaged over seeds."""
    measure = comparison.measure
    seeds = len({row.seed for row in comparison.rows})
    note = f"Mean of {seeds} seeds; error bars: one standard deviation." if seeds > 1 else ""
    curves = []
    for prefix, title, tuned in (
        ("compare", f"{measure.title} by FLOPs", True),
        ("compare-before", f"{measure.title} before fine-tuning", False),
    ):
        series = [_method_series(summary, comparison, tuned) for summary in comparison.summaries]
        curves.append(
            Plot(
                f"{prefix}-{comparison.name}",
                f"{title}: {comparison.arch}",
                FLOPS_AXIS,
                measure.axis,
                series,
                note or "One seed.",
            )
        )
    return curves


def _method_series(summary: MethodSummary, comparison: ComparisonRecord, tuned: bool) -> Series:
    """One method's curve, which ends at the dense network."""
    name = comparison.measure.name
    points = [
        DataPoint(
            100 * target.share,
            plotted(name, target.score if tuned else target.before),
            f"{summary.method} {target.share:.0%}",
            error=plotted(name, target.deviation or 0.0) if tuned else 0.0,
        )
        for target in summary.by_target.values()
    ]
    dense = DataPoint(100, plotted(name, comparison.dense_score), "dense")
    return _curve(summary.method, [*points, dense])


def _curve(name: str, points: list[DataPoint]) -> Series:
    """A series whose points are connected from left to right."""
    return Series(name, sorted(points, key=lambda point: point.x))


def heatmaps(data: ReportData) -> list[Heatmap]:
    """Share of channels kept by layer, one heatmap per set of layers."""
    by_layers: dict[tuple[str, ...], Numbered] = {}
    for i, network in enumerate(data.networks):
        if network.widths:
            by_layers.setdefault(tuple(network.widths), []).append((i, network))
    maps = []
    for number, (columns, networks) in enumerate(by_layers.items(), 1):
        rows = [
            (network.short_label, i, [kept / dense for kept, dense in network.widths.values()])
            for i, network in networks
        ]
        of_arch = f" of {networks[0][1].arch}" if len(by_layers) > 1 else ""
        key = "channels" if number == 1 else f"channels-{number}"
        maps.append(Heatmap(key, f"Channels kept{of_arch}, by layer", list(columns), rows))
    return maps


def _by_method(networks: list[NetworkRecord]) -> dict[str, Numbered]:
    """Group networks by method; each group ends with the dense network of its architecture."""
    dense = [(i, network) for i, network in enumerate(networks) if network.method == "dense"]
    groups: dict[str, Numbered] = {}
    for i, network in enumerate(networks):
        if network.method != "dense":
            groups.setdefault(network.prefix + network.method, []).append((i, network))
    for group in groups.values():
        group += [(i, network) for i, network in dense if network.arch == group[0][1].arch]
    return groups or {"dense": dense}


def _score_by_flops(networks: list[NetworkRecord], measure: Measure) -> Plot:
    """A figure by FLOPs, one curve per method."""
    series = []
    for method, group in _by_method(networks).items():
        points = [
            DataPoint(100 * network.share, plotted(measure.name, figure), network.label, i)
            for i, network in group
            if network.share is not None and (figure := network.at(measure).final) is not None
        ]
        series.append(_curve(method, points))
    title = f"{measure.title} by FLOPs"
    return Plot(f"{measure.key}-flops", title, FLOPS_AXIS, measure.axis, series)


def _score_by_latency(data: ReportData) -> list[Plot]:
    """A figure by milliseconds, one plot per measure and device, and one curve per method."""
    drawn = []
    for measure in data.measures:
        for number, device in enumerate(data.devices, 1):
            series = []
            for method, group in _by_method(data.networks).items():
                points = [
                    DataPoint(latency.ms, plotted(measure.name, figure), network.label, i)
                    for i, network in group
                    for latency in network.latencies
                    if latency.device == device
                    and (figure := network.at(measure).final) is not None
                ]
                series.append(_curve(method, points))
            key, title = (
                f"{measure.key}-latency-{number}",
                f"{measure.title} by latency on {device}",
            )
            drawn.append(Plot(key, title, "latency, ms", measure.axis, series))
    return drawn


def latency_by_flops(benches: list[BenchRecord], networks: list[NetworkRecord]) -> Plot:
    """Latency against FLOPs with a fitted line for each device (the paper's figure 8)."""
    series, slopes = [], []
    for bench in benches:
        # a point links to one row of the table: if networks share a measurement, the first
        rows = [(bench.row_of(network), i) for i, network in enumerate(networks)]
        numbers = {row.name: i for row, i in reversed(rows) if row is not None}
        points = [
            DataPoint(100 * p.flops, 100 * p.latency, p.name, numbers.get(p.name))
            for p in bench.points
        ]
        name = bench.device + (f", {bench.baseline}" if len(benches) > 1 else "")
        series.append(Series(name, points, line=False))
        fit = fitted_slope(bench.points)
        if fit is not None:
            slope, intercept = fit
            label = f"slope {slope:.2f}"
            ends = (min(point.x for point in points), max(point.x for point in points))
            line = [DataPoint(x, slope * x + 100 * intercept, label) for x in ends]
            series.append(Series(label, line, markers=False))
            slopes.append(f"{name}: 1 % fewer FLOPs cut latency by {slope:.2f} %")
    return Plot(
        "latency-flops",
        "Latency by FLOPs",
        FLOPS_AXIS,
        "latency, % of dense",
        series,
        "; ".join(slopes),
    )


def _search_progress(search: SearchRecord) -> Plot:
    """The figure of every candidate, and that of the best so far."""
    name, leaders = search.measure.name, accumulate(search.candidates, _better)
    points = [
        DataPoint(i, plotted(name, candidate.figure), f"candidate {i}")
        for i, candidate in enumerate(search.candidates, 1)
    ]
    best = [
        DataPoint(i, plotted(name, leader.figure), f"best of the first {i}")
        for i, leader in enumerate(leaders, 1)
    ]
    shares = search.shares
    return Plot(
        f"search-{search.file.stem}",
        f"Search for {search.file.name}",
        "candidate",
        search.measure.axis,
        [Series("candidates", points, line=False), Series("best so far", best, markers=False)],
        f"Candidates are compared at {percents(shares)} of the dense FLOPs." if shares else "",
    )


def _better(leader: CandidateRecord, other: CandidateRecord) -> CandidateRecord:
    """The one with the higher score; the figure that is shown may go the other way."""
    return other if other.score > leader.score else leader


def _layer_parameters(search: SearchRecord) -> list[Plot]:
    """α and κ by layer; without points if the ranking has none."""
    alpha = [
        DataPoint(i, math.log10(layer.alpha), f"{layer.name}: α = {layer.alpha:.3g}")
        for i, layer in enumerate(search.layers, 1)
        if layer.alpha > 0
    ]
    kappa = [
        DataPoint(i, layer.kappa, f"{layer.name}: κ = {layer.kappa:.3g}")
        for i, layer in enumerate(search.layers, 1)
    ]
    name = search.file.stem
    return [
        Plot(f"alpha-{name}", "α by layer", "layer", "log₁₀ α", [Series("α", alpha)]),
        Plot(f"kappa-{name}", "κ by layer", "layer", "κ", [Series("κ", kappa)]),
    ]
