"""Find result files and gather what they hold for a report."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from legr_cli.baselines.summary import FORMAT as COMPARISON
from legr_cli.deploy import core
from legr_cli.deploy.bench_json import check_bench
from legr_cli.errors import LegrError, ReportError
from legr_cli.models.card import Card, read_card
from legr_cli.ranking import FORMAT as RANKING
from legr_cli.reports.reading import (
    bench_record,
    network_record,
    read_comparisons,
    read_json,
    search_record,
)
from legr_cli.reports.records import (
    BenchRecord,
    Comparison,
    Latency,
    NetworkRecord,
    ReportData,
    SearchRecord,
)


def collect(paths: Iterable[Path]) -> ReportData:
    """Read files, and every result of legr in folders.

    A file named by the user must be readable; other files in a folder are skipped if they are not.
    A fine-tuned network replaces the pruned one it was made from.
    """
    files = _find_files(paths)
    comparisons = read_comparisons(path for path, _ in files if path.name == "compare.json")
    cards, benches, searches = _read_files(files, comparisons)
    networks = [network_record(path, card, cards.values()) for path, card in cards.items()]
    if not (networks or benches or searches or comparisons):
        raise ReportError("found no results of legr there: name its result files or folders")
    networks += _benched_dense(networks, benches)
    networks = [_with_latencies(network, benches) for network in networks]
    if len({network.arch for network in networks}) > 1:
        networks = [replace(network, prefix=f"{network.arch} ") for network in networks]
    order = {"dense": 0, "legr": 1}
    networks.sort(key=lambda n: (n.arch, order.get(n.method, 2), n.method, n.flops or 0, n.file))
    return ReportData(_without_untuned(networks), benches, searches, comparisons)


def _find_files(paths: Iterable[Path]) -> list[tuple[Path, bool]]:
    """Every file once, and whether the user named it."""
    found: dict[Path, bool] = {}
    for path in paths:
        if path.is_dir():
            for inside in sorted(path.rglob("*")):
                if inside.is_file() and not inside.name.startswith("."):
                    found.setdefault(inside, False)
        elif path.is_file():
            found[path] = True
        else:
            raise ReportError(f"{path} does not exist")
    return list(found.items())


def _read_files(
    files: list[tuple[Path, bool]], comparisons: list[Comparison]
) -> tuple[dict[Path, Card], list[BenchRecord], list[SearchRecord]]:
    """Network cards by file, benchmarks and searches."""
    cards: dict[Path, Card] = {}
    benches: list[BenchRecord] = []
    searches: list[SearchRecord] = []
    for path, named in files:
        if not named and any(comparison.covers(path) for comparison in comparisons):
            continue
        try:
            if path.suffix == ".safetensors":
                cards[path] = read_card(path)
                continue
            data = read_json(path) if path.suffix == ".json" else {}
            kind = data.get("format")
            if kind == core.FORMAT:
                benches.append(bench_record(check_bench(path, data)))
            elif kind == RANKING:
                searches.append(search_record(path, data))
            elif named and kind != COMPARISON:
                raise ReportError(
                    f"{path} is not a network, ranking, benchmark or comparison of legr's"
                )
        except LegrError:
            if named:
                raise
    return cards, benches, searches


def _benched_dense(
    networks: list[NetworkRecord], benches: list[BenchRecord]
) -> list[NetworkRecord]:
    """Dense networks that served as a benchmark's baseline and have no file here."""
    known = {(network.arch, network.flops) for network in networks}
    found: dict[tuple[str, int], NetworkRecord] = {}
    for bench in benches:
        row = next(row for row in bench.rows if row.name == bench.baseline)
        arch = str(row.arch)
        if row.flops and (arch, row.flops) not in known:
            file = row.file or Path(row.name)
            dense = NetworkRecord(file, "dense", arch, row.flops, row.flops, row.params)
            found.setdefault((arch, row.flops), dense)
    return list(found.values())


def _with_latencies(network: NetworkRecord, benches: list[BenchRecord]) -> NetworkRecord:
    """The network with its latency in each benchmark that timed it."""
    timed = ((bench.device, bench.row_of(network)) for bench in benches)
    latencies = [Latency(device, row.median_ms, row.ratio) for device, row in timed if row]
    return replace(network, latencies=latencies)


def _without_untuned(networks: list[NetworkRecord]) -> list[NetworkRecord]:
    """Leave out networks that are also there fine-tuned (same method, architecture and FLOPs)."""
    tuned = {(n.method, n.arch, n.flops) for n in networks if n.accuracy is not None}
    return [
        network
        for network in networks
        if network.accuracy is not None
        or (network.method, network.arch, network.flops) not in tuned
    ]
