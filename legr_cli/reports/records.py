"""The records that a report is drawn from: networks, benchmarks, searches and comparisons."""

from dataclasses import dataclass, field
from pathlib import Path

from legr_cli.baselines.summary import ComparisonRow, MethodSummary, summarize
from legr_cli.deploy.slope import Point


@dataclass(frozen=True)
class Latency:
    """Latency of a network on one device; `ratio` is relative to the benchmark's baseline."""

    device: str
    ms: float
    ratio: float


@dataclass(frozen=True)
class NetworkRecord:
    """A network file, its cost, accuracy and latencies, and how it was made."""

    file: Path
    method: str  # "legr", "norm", "uniform", … or "dense"
    arch: str
    flops: int | None
    dense_flops: int | None
    params: int | None
    accuracy: float | None = None  # on the test images
    before: float | None = None  # on the validation images, before fine-tuning
    widths: dict[str, tuple[int, int]] = field(default_factory=dict)  # layer: (kept, dense)
    commands: list[str] = field(default_factory=list)
    made_with: dict[str, str] = field(default_factory=dict)
    target: float | None = None  # requested share of the dense FLOPs
    prefix: str = ""  # the architecture, when the report covers more than one
    latencies: list[Latency] = field(default_factory=list)

    @property
    def share(self) -> float | None:
        """FLOPs as a share of the dense network's."""
        return self.flops / self.dense_flops if self.flops and self.dense_flops else None

    @property
    def short_label(self) -> str:
        """`legr 40%`: unique among networks of one architecture."""
        share = None if self.method == "dense" else self.target or self.share
        return self.method + ("" if share is None else f" {share:.0%}")

    @property
    def label(self) -> str:
        """The short label, preceded by the architecture when the report covers several."""
        return self.prefix + self.short_label


@dataclass(frozen=True)
class BenchRow:
    """One network in a benchmark."""

    name: str
    file: Path | None
    arch: str | None
    flops: int | None
    params: int | None
    median_ms: float
    ratio: float  # latency relative to the baseline


@dataclass(frozen=True)
class BenchRecord:
    """A bench.json: networks timed on one device."""

    device: str
    runtime: str
    baseline: str  # name of the row that ratios are relative to
    rows: list[BenchRow]
    points: list[Point]  # rows with known FLOPs, relative to the baseline
    command: str = ""

    def row_of(self, network: NetworkRecord) -> BenchRow | None:
        """The row of this file, or else of a network with the same architecture and FLOPs.

        The fallback lets a fine-tuned network show the latency measured before fine-tuning.
        """
        own = network.file.resolve()
        for row in self.rows:
            if row.file is not None and row.file.resolve() == own:
                return row
        cost = (network.arch, network.flops)
        return next((r for r in self.rows if r.flops and (r.arch, r.flops) == cost), None)


@dataclass(frozen=True)
class LayerParameters:
    """One layer of a learned ranking."""

    name: str
    alpha: float
    kappa: float


@dataclass(frozen=True)
class SearchRecord:
    """A ranking.json and the candidates that were evaluated to find it."""

    file: Path
    layers: list[LayerParameters]  # empty if the ranking scores filters one by one
    shares: list[float]  # of the FLOPs, at which candidates were compared
    candidates: list[float]  # validation accuracy of each
    command: str | None = None


@dataclass(frozen=True)
class Comparison:
    """A compare.json, or several that differ only in their seeds, merged."""

    files: list[Path]
    arch: str
    dense_accuracy: float
    rows: list[ComparisonRow]
    commands: list[str]

    @property
    def summaries(self) -> list[MethodSummary]:
        """Each method, averaged over all seeds."""
        return summarize(self.rows)

    @property
    def name(self) -> str:
        """Name of its folder; when merged, of the folder that contains the first one."""
        folder = self.files[0].parent
        return (folder if len(self.files) == 1 else folder.resolve().parent).name or "here"

    def covers(self, path: Path) -> bool:
        """Whether a file is an intermediate result of this comparison, not to be listed itself.

        The fine-tuned networks of the first seed are listed as examples.
        """
        if not any(path.parent.parent == file.parent for file in self.files):
            return False
        folder = path.parent.name
        first_seed = min((row.seed for row in self.rows), default=0)
        example = folder == "tuned" and path.stem.endswith(f"-seed{first_seed}")
        return folder in ("rankings", "pruned", "tuned") and not example


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows."""

    networks: list[NetworkRecord]
    benches: list[BenchRecord]
    searches: list[SearchRecord]
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def devices(self) -> list[str]:
        """Devices that were benchmarked, each once."""
        return list(dict.fromkeys(bench.device for bench in self.benches))
