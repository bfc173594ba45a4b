"""Find result files and collect their records for a report."""

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
    read_scores,
    search_record,
)
from legr_cli.reports.records import (
    BenchRecord,
    ComparisonRecord,
    DeviceLatency,
    Measure,
    NetworkRecord,
    ReportData,
    SearchRecord,
    StageScores,
)
from legr_cli.training.evaluate import SCORES

Scores = dict[tuple[Path, Measure], float]  # that legr evaluate wrote, by file


def collect(paths: Iterable[Path]) -> ReportData:
    """Read result files, and all result files in folders.

    A file that the user named must be readable; others in a folder are skipped if they are not.
    A fine-tuned network replaces the pruned one that it was made from, and so does a repaired one.
    """
    files = _find_files(paths)
    comparisons = read_comparisons(path for path, _ in files if path.name == "compare.json")
    cards, benches, searches, scores = _read_files(files, comparisons)
    networks = [network_record(path, card, cards.values()) for path, card in cards.items()]
    if not (networks or benches or searches or comparisons):
        if scores:
            raise ReportError(
                "there are only scores: also pass the .safetensors files that legr evaluate scored"
            )
        raise ReportError(
            "no results of legr found: pass its result files or folders that contain them"
        )
    networks += _benched_dense(networks, benches)
    networks = [_with_latencies(network, benches) for network in networks]
    networks = _with_scores(networks, scores)
    if len({network.arch for network in networks}) > 1:
        networks = [replace(network, prefix=f"{network.arch} ") for network in networks]
    order = {"dense": 0, "legr": 1}
    networks.sort(key=lambda n: (n.arch, order.get(n.method, 2), n.method, n.flops or 0, n.file))
    return ReportData(_without_untuned(networks), benches, searches, comparisons)


def _find_files(paths: Iterable[Path]) -> list[tuple[Path, bool]]:
    """List every file once, and whether the user named it."""
    files: dict[Path, bool] = {}
    for path in paths:
        if path.is_dir():
            for inside in sorted(path.rglob("*")):
                if inside.is_file() and not inside.name.startswith("."):
                    files.setdefault(inside, False)
        elif path.is_file():
            files[path] = True
        else:
            raise ReportError(f"{path} does not exist")
    return list(files.items())


def _read_files(
    files: list[tuple[Path, bool]], comparisons: list[ComparisonRecord]
) -> tuple[dict[Path, Card], list[BenchRecord], list[SearchRecord], Scores]:
    """Read network cards (by file), measurements, searches and scores (by file)."""
    cards: dict[Path, Card] = {}
    benches: list[BenchRecord] = []
    searches: list[SearchRecord] = []
    scores: Scores = {}
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
            elif kind == SCORES:
                scores |= read_scores(path, data)
            elif named and kind != COMPARISON:
                raise ReportError(
                    f"{path} is not a network, ranking, measurement or comparison written by legr"
                )
        except LegrError:
            if named:
                raise
    return cards, benches, searches, scores


def _benched_dense(
    networks: list[NetworkRecord], benches: list[BenchRecord]
) -> list[NetworkRecord]:
    """Dense networks that were the baseline of a measurement but have no file here."""
    known = {(network.arch, network.flops) for network in networks}
    baselines: dict[tuple[str, int], NetworkRecord] = {}
    for bench in benches:
        row = next(row for row in bench.rows if row.name == bench.baseline)
        arch = str(row.arch)
        if row.flops and (arch, row.flops) not in known:
            file = row.file or Path(row.name)
            dense = NetworkRecord(file, "dense", arch, row.flops, row.flops, row.params)
            baselines.setdefault((arch, row.flops), dense)
    return list(baselines.values())


def _with_latencies(network: NetworkRecord, benches: list[BenchRecord]) -> NetworkRecord:
    """Add the latencies of a network, one for each measurement that includes it."""
    timed = ((bench.device, bench.row_of(network)) for bench in benches)
    latencies = [DeviceLatency(device, row.median_ms, row.ratio) for device, row in timed if row]
    return replace(network, latencies=latencies)


def _without_untuned(networks: list[NetworkRecord]) -> list[NetworkRecord]:
    """Leave out networks that were fine-tuned later, and cut ones that were repaired later."""
    tuned = {_budget(n) for n in networks if n.is_scored}
    repaired = {_budget(n) for n in networks if n.stage == "repaired"}
    later = {"cut": tuned | repaired, "repaired": tuned}
    return [
        network
        for network in networks
        if network.is_scored or _budget(network) not in later.get(network.stage, tuned)
    ]


def _with_scores(networks: list[NetworkRecord], scores: Scores) -> list[NetworkRecord]:
    """Add what legr evaluate measured: on a network, and on the stages that it went through."""
    by_stage: dict[tuple[str, str, int | None], dict[Measure, dict[str, float]]] = {}
    for network in networks:
        file, stage = network.file.resolve(), network.stage
        for (scored_file, measure), figure in scores.items():
            if scored_file == file and stage in ("cut", "repaired"):
                by_stage.setdefault(_budget(network), {}).setdefault(measure, {})[stage] = figure
    return [_with_stages(n, by_stage.get(_budget(n), {}), scores) for n in networks]


def _with_stages(
    network: NetworkRecord, earlier: dict[Measure, dict[str, float]], scores: Scores
) -> NetworkRecord:
    """Add figures of earlier stages and, unless training recorded them, of the network itself."""
    file, merged = network.file.resolve(), dict(network.scores)
    if network.stage in ("dense", "tuned"):
        for (scored_file, measure), figure in scores.items():
            if scored_file == file:
                merged.setdefault(measure, StageScores(figure))
    for measure, stages in earlier.items():
        merged[measure] = replace(merged.get(measure, StageScores()), **stages)
    return replace(network, scores=merged)


def _budget(network: NetworkRecord) -> tuple[str, str, int | None]:
    """What the stages of one network have in common."""
    return network.method, network.arch, network.flops
