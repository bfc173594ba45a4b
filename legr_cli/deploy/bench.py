"""`legr_cli.bench`: networks → ONNX → latencies, measured in turns on one machine."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING

from legr_cli.arguments import check_instance
from legr_cli.deploy import core
from legr_cli.deploy.bench_models import BenchModels, as_onnx
from legr_cli.deploy.board import Board, Facts, place_for
from legr_cli.errors import BenchError, SettingError
from legr_cli.progress import Progress, Report, Status, reporting, silent
from legr_cli.settings import Bench
from legr_cli.shapes import Shapes, check_shapes
from legr_cli.version import __version__

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Latency:
    """Latency of a network for one image."""

    name: str
    median_ms: float
    p5_ms: float
    p95_ms: float
    ratio: float  # relative to the first network; the median over rounds
    ratio_range: tuple[float, float]  # 95 % confidence interval of `ratio`
    flops: int | None  # one multiply-add = 1; None if the ONNX file does not record them
    difference: float | None  # relative, to torch's output; None if legr did not export it


@dataclass(frozen=True)
class BenchResult:
    """Latencies of several networks on one machine."""

    networks: tuple[Latency, ...]
    facts: Facts  # the content of bench.json


def bench(
    models: "Sequence[str | PathLike[str] | nn.Module]",
    *,
    ssh: str | None = None,
    python: str = "python3",
    arch: "str | Callable[..., nn.Module] | None" = None,
    classes: int | None = None,
    input_shape: Sequence[int] | Shapes | None = None,
    settings: Bench | None = None,
    progress: Report | None = None,
) -> BenchResult:
    """Measure the latency of networks for one image at a time, on this machine or over ssh.

    Networks are exported to ONNX and run in turns on one core, so that ratios hold even on a busy
    machine.

    Args:
        models: ONNX files, legr files, checkpoints or modules; ratios are relative to the first.
        ssh: `user@host` of a board with Python, numpy and onnxruntime; None: this machine.
        python: The Python interpreter on the board.
        arch: Architecture of checkpoints that do not record it.
        classes: Number of classes, if it differs from the architecture's default.
        input_shape: Shape of one image, for networks that do not record it.
        settings: Number of threads, seconds per network, and the core to use.
        progress: Called with events while measuring, such as `print`.

    Returns:
        Medians and percentiles in milliseconds, and ratios, in the order of `models`.

    Raises:
        BenchError: A file cannot be read or timed, or the board cannot be reached.
        ModelError: A network cannot be exported.
        SettingError: An argument is out of range.

    Example:
        >>> legr_cli.bench(["dense.onnx", "robot.onnx"]).networks[1].ratio
        0.43
    """
    check_instance(settings, Bench, "settings")
    check_instance(ssh, str, "ssh")
    check_instance(python, str, "python")
    if not isinstance(models, Sequence) or isinstance(models, str) or not models:
        raise SettingError("models must be a list of files or modules")
    in_memory = {}
    names = []
    for number, model in enumerate(models, 1):
        is_name = isinstance(model, str | PathLike)
        names.append(fspath(model) if is_name else f"network {number}")  # type: ignore[arg-type]
        if not is_name:
            from legr_cli.models.network import as_network

            in_memory[names[-1]] = as_network(model, input_shape)
    shape = None if input_shape is None else check_shapes(input_shape)
    named = BenchModels(tuple(dict.fromkeys(names)), arch, classes, shape, in_memory)
    facts = bench_networks(named, settings or Bench(), ssh, python, progress=reporting(progress))
    return BenchResult(tuple(_latency(row) for row in facts["models"]), facts)


def bench_networks(
    models: BenchModels,
    settings: Bench,
    ssh: str | None = None,
    python: str = "python3",
    *,
    need_flops: bool = False,
    progress: Report = silent,
) -> Facts:
    """Measure networks on this machine or a board; return the content of bench.json."""
    place = place_for(ssh, python)
    progress(Status(f"starting on {place.name}"))
    with Board(place, settings.threads, settings.core) as board:
        differences = _load(board, models, progress, need_flops)
        names = models.short_names()
        total = round(len(names) * settings.seconds)

        def show_share(done: float) -> None:
            left = f"{max(0, round(total * (1 - done)))} s left"
            progress(Progress(round(done * 100), 100, "measuring", (left,)))

        measured = board.measure(list(names.values()), settings.seconds, show_share)
        against = names[models.models[0]]
        result = core.result(board.device, measured, against, asdict(settings))
    rows = [
        {**row, "file": model, "difference": differences[model]}
        for row, model in zip(result["models"], names, strict=True)
    ]
    host = {"host": place.name} if place.ssh else {}
    stopped = {"stopped": True} if measured.get("stopped") else {}
    device = {**result["device"], **host}
    return {**result, "device": device, "models": rows, "legr": __version__, **stopped}


def _load(
    board: Board, models: BenchModels, progress: Report, need_flops: bool
) -> dict[str, float | None]:
    """Load all networks onto a board; return each one's difference to torch."""
    names, differences = models.short_names(), {}
    on_place = f" on {board.place.name}"
    for model, data, difference in as_onnx(models, lambda text: progress(Status(text + on_place))):
        differences[model] = difference
        progress(Status(f"loading {names[model]}{on_place}"))
        # exported networks have a fixed size; others may leave it open
        shape = models.input_shape if model.endswith(".onnx") else None
        facts = board.load(names[model], data, shape)
        if need_flops and not facts["flops"]:
            raise BenchError(f"--plot needs the FLOPs of {names[model]}: export it with legr")
    return differences


def _latency(row: Facts) -> Latency:
    """Convert a model's row of bench.json."""
    low, high = row["ratio_range"]
    return Latency(
        row["name"],
        row["median_ms"],
        row["p5_ms"],
        row["p95_ms"],
        row["ratio"],
        (low, high),
        row.get("flops"),
        row.get("difference"),
    )
