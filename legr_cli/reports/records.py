"""The records behind a report: networks, measurements, searches and comparisons."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from legr_cli.baselines.summary import ComparisonRow, MethodSummary, summarize
from legr_cli.deploy.slope import Point
from legr_cli.training.scores import ACCURACY, capitalized, with_unit


@dataclass(frozen=True)
class Measure:
    """What a figure is, and which images it was measured on; each measure has its own axis."""

    name: str = ACCURACY  # or mean IoU, agreement, relative error, …
    split: str = "test"  # or "validation"

    @property
    def axis(self) -> str:
        """`test accuracy, %`, the title of an axis or a column."""
        return with_unit(f"{self.split} {self.name}", self.name)

    @property
    def title(self) -> str:
        """`Accuracy`, or `Validation agreement`: how the title of a chart starts."""
        return capitalized(self.name if self.split == "test" else f"{self.split} {self.name}")

    @property
    def key(self) -> str:
        """`accuracy` or `validation-agreement`, for the name of an image file."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-") or "score"


TEST_ACCURACY = Measure()


@dataclass(frozen=True)
class StageScores:
    """A network's figures of one measure, at each stage that it went through."""

    final: float | None = None  # of the network itself: a dense or a fine-tuned one
    before: float | None = None  # on the validation images, before fine-tuning
    cut: float | None = None  # when it was cut, from legr evaluate …
    repaired: float | None = None  # … and when it was repaired


@dataclass(frozen=True)
class DeviceLatency:
    """Latency of a network on one device."""

    device: str
    ms: float
    ratio: float  # relative to the baseline of the measurement


@dataclass(frozen=True)
class NetworkRecord:
    """A network file: its cost, scores, latencies and provenance."""

    file: Path
    method: str  # "legr", "norm", "uniform", … or "dense"
    arch: str
    flops: int | None
    dense_flops: int | None
    params: int | None
    scores: dict[Measure, StageScores] = field(default_factory=dict)
    stage: str = "dense"  # "cut", "repaired" or "tuned"
    widths: dict[str, tuple[int, int]] = field(default_factory=dict)  # layer: (kept, dense)
    commands: list[str] = field(default_factory=list)
    made_with: dict[str, str] = field(default_factory=dict)
    target: float | None = None  # requested share of the dense FLOPs
    prefix: str = ""  # the architecture, if the report covers several
    latencies: list[DeviceLatency] = field(default_factory=list)

    @property
    def share(self) -> float | None:
        """FLOPs as a share of the dense network's."""
        return self.flops / self.dense_flops if self.flops and self.dense_flops else None

    @property
    def is_scored(self) -> bool:
        """Whether the network itself was measured, not only an earlier stage of it."""
        return any(scores.final is not None for scores in self.scores.values())

    def at(self, measure: Measure) -> StageScores:
        """The figures of a measure; empty if there are none."""
        return self.scores.get(measure, StageScores())

    @property
    def short_label(self) -> str:
        """`legr 40%`: unique among networks of one architecture."""
        share = None if self.method == "dense" else self.target or self.share
        return self.method + ("" if share is None else f" {share:.0%}")

    @property
    def label(self) -> str:
        """The short label, preceded by the architecture if the report covers several."""
        return self.prefix + self.short_label


@dataclass(frozen=True)
class BenchRow:
    """A network in a measurement."""

    name: str
    file: Path | None
    arch: str | None
    flops: int | None
    params: int | None
    median_ms: float
    ratio: float  # latency relative to the baseline


@dataclass(frozen=True)
class BenchRecord:
    """The measurement in a bench.json: networks timed on one device."""

    device: str
    runtime: str
    baseline: str  # name of the row that ratios are relative to
    rows: list[BenchRow]
    points: list[Point]  # rows with known FLOPs, relative to the baseline
    command: str = ""

    def row_of(self, network: NetworkRecord) -> BenchRow | None:
        """The row of this file, else of a network with the same architecture and FLOPs.

        The fallback gives a fine-tuned network the latency measured before fine-tuning.
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
class CandidateRecord:
    """A candidate of a search."""

    score: float  # higher is better
    figure: float  # the one to show


@dataclass(frozen=True)
class SearchRecord:
    """A ranking.json, and the candidates evaluated in the search for it."""

    file: Path
    layers: list[LayerParameters]  # empty if the ranking scores filters one by one
    shares: list[float]  # of the dense FLOPs, to which candidates were pruned
    candidates: list[CandidateRecord]
    command: str | None = None
    measure: Measure = Measure(split="validation")


@dataclass(frozen=True)
class ComparisonRecord:
    """A compare.json, or several merged that differ only in their seeds."""

    files: list[Path]
    arch: str
    dense_score: float
    rows: list[ComparisonRow]
    commands: list[str]
    measure: Measure = TEST_ACCURACY

    @property
    def summaries(self) -> list[MethodSummary]:
        """Summary of each method, averaged over seeds."""
        return summarize(self.rows)

    @property
    def name(self) -> str:
        """Name of the folder of compare.json; of merged ones, the folder above."""
        folder = self.files[0].parent
        return (folder if len(self.files) == 1 else folder.resolve().parent).name or "here"

    def covers(self, path: Path) -> bool:
        """Whether a file is an intermediate result of this comparison, so not listed by itself.

        The fine-tuned networks of the first seed are listed, as examples.
        """
        if not any(path.parent.parent == file.parent for file in self.files):
            return False
        folder = path.parent.name
        first_seed = min((row.seed for row in self.rows), default=0)
        example = folder == "tuned" and path.stem.endswith(f"-seed{first_seed}")
        return folder in ("rankings", "pruned", "tuned") and not example


@dataclass(frozen=True)
class ReportData:
    """All records of a report."""

    networks: list[NetworkRecord]
    benches: list[BenchRecord]
    searches: list[SearchRecord]
    comparisons: list[ComparisonRecord] = field(default_factory=list)

    @property
    def devices(self) -> list[str]:
        """The devices that were measured on, each once."""
        return list(dict.fromkeys(bench.device for bench in self.benches))

    @property
    def measures(self) -> list[Measure]:
        """What the networks were measured by, each once; accuracy first."""
        found = dict.fromkeys(measure for network in self.networks for measure in network.scores)
        return sorted(found, key=lambda measure: (measure != TEST_ACCURACY, measure.axis))
