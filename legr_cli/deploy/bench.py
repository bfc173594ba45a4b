"""`legr_cli.bench`: networks → ONNX → latencies, measured in turns on one machine."""

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legr_cli.deploy import core
from legr_cli.deploy.board import Board, Facts, place_for
from legr_cli.deploy.names import file_names
from legr_cli.errors import BenchError, SettingError, first_line
from legr_cli.files import staged
from legr_cli.progress import Progress, Report, Status, silent
from legr_cli.settings import Bench
from legr_cli.version import __version__

if TYPE_CHECKING:
    from torch import nn

    from legr_cli.models.network import Network

_LARGEST = 1e15  # of any number in a measurement
README = """\
On the board, Python 3.8 or later needs two packages: python3 -m pip install numpy onnxruntime
Then run, in this folder: python3 legr_bench.py {words} > bench.json
Copy bench.json back: `legr bench bench.json` shows it.

To run a network on the board, read how its input is prepared from the file itself:

    import json, onnxruntime
    session = onnxruntime.InferenceSession("{first}")
    about = json.loads(session.get_modelmeta().custom_metadata_map["legr"])
    about["input"], about.get("pictures"), about.get("mean"), about.get("std"), about.get("classes")

Pictures are resized as "pictures" says and scaled to 0…1; then mean is subtracted and std divides,
per channel.
"""


@dataclass(frozen=True)
class Asked:
    """The networks to time, as they were named, and what is needed to open them."""

    models: tuple[str, ...]  # ratios are relative to the first
    arch: "str | Callable[..., nn.Module] | None" = None
    classes: int | None = None
    input_shape: tuple[int, ...] | None = None
    opened: Mapping[str, "Network"] = field(default_factory=dict)  # by name: those from Python

    def names(self) -> dict[str, str]:
        """By model, a short name; no two are the same."""
        short = {model: Path(model).name or model for model in self.models}
        names = list(short.values())
        return {m: n if names.count(n) == 1 else m for m, n in short.items()}


def as_onnx(
    asked: Asked, watch: Callable[[str], None]
) -> Iterator[tuple[str, bytes, float | None]]:
    """Each network as the bytes of an ONNX file: as it is, or exported for one image.

    Exported networks come with their difference to torch.
    """
    others = []
    for model in asked.models:
        if model.endswith(".onnx") and model not in asked.opened:
            yield model, _whole(Path(model)), None
        else:
            others.append(model)
    if not others:
        return
    try:
        from legr_cli.deploy.export import exported
        from legr_cli.models.peers import open_peers
    except ImportError as error:
        raise BenchError(
            f"{others[0]} must be exported first, which needs {error.name}: pass an .onnx file here"
        ) from error

    def opening(model: str) -> None:
        watch(f"exporting {model}")

    known = asked.arch, asked.classes, asked.input_shape, asked.opened
    for model, network in open_peers(others, *known, opening):
        yield model, *exported(network)


def _whole(path: Path) -> bytes:
    """An ONNX file, including weights that it keeps in another file."""
    try:
        data = path.read_bytes()
        if not core.has_graph(data):
            raise BenchError(f"{path} is not an ONNX file")
        apart = core.has_external_data(data)
    except FileNotFoundError:
        raise BenchError(f"{path} does not exist") from None
    except MemoryError:
        raise BenchError(f"{path} is larger than the memory of this machine") from None
    except (IndexError, ValueError, TypeError):
        raise BenchError(f"{path} is not an ONNX file") from None
    if not apart:
        return data
    try:
        import onnx
    except ImportError:
        raise BenchError(
            f"{path} keeps its weights in another file, which needs the onnx package to be read: "
            "export it with external_data=False"
        ) from None
    try:
        return bytes(onnx.load(path).SerializeToString())
    except Exception as error:
        raise BenchError(f"{path}: its weights cannot be read: {first_line(error)}") from error


def measure(
    board: Board,
    asked: Asked,
    settings: Bench,
    progress: Report,
    need_flops: bool = False,
) -> Facts:
    """Send all networks to a board and time them; returns what bench.json holds."""
    names, differences = asked.names(), {}
    place = f" on {board.place.name}"
    for model, data, difference in as_onnx(asked, lambda text: progress(Status(text + place))):
        differences[model] = difference
        progress(Status(f"loading {names[model]}{place}"))
        shape = asked.input_shape if model.endswith(".onnx") else None
        facts = board.load(names[model], data, shape)
        if need_flops and not facts["flops"]:
            raise BenchError(f"--plot needs the FLOPs of {names[model]}: export it with legr")
    total = round(len(names) * settings.seconds)

    def watch(done: float) -> None:
        left = f"{max(0, round(total * (1 - done)))} s left"
        progress(Progress(round(done * 100), 100, "measuring", (left,)))

    found = board.measure(list(names.values()), settings.seconds, watch)
    against = names[asked.models[0]]
    whole = core.result(board.device, found, against, asdict(settings))
    for row, model in zip(whole["models"], names, strict=True):
        row |= {"file": model, "difference": differences[model]}
    if board.place.ssh:
        whole["device"]["host"] = board.place.name
    stopped = {"stopped": True} if found.get("stopped") else {}
    return {**whole, "legr": __version__, **stopped}


@dataclass(frozen=True)
class Latency:
    """How long a network takes for one image."""

    name: str
    median_ms: float
    p5_ms: float
    p95_ms: float
    ratio: float  # to the first network, paired run by run
    ratio_range: tuple[float, float]
    flops: int | None  # one multiply-add counts as one; None: the file does not record them
    difference: float | None  # of the exported network to torch, relative


@dataclass(frozen=True)
class BenchResult:
    """Latencies of several networks on one machine."""

    networks: tuple[Latency, ...]
    facts: Facts  # all of it, as bench.json has it


def bench(
    models: "Sequence[str | PathLike[str] | nn.Module]",
    *,
    ssh: str | None = None,
    python: str = "python3",
    arch: "str | Callable[..., nn.Module] | None" = None,
    classes: int | None = None,
    input_shape: Sequence[int] | None = None,
    settings: Bench | None = None,
    progress: Report | None = None,
) -> BenchResult:
    """Measure the latency of networks for one image at a time, on this machine or over ssh.

    Networks are exported to ONNX and run in turns on one core, so that ratios hold even on a busy
    machine.

    Args:
        models: ONNX files, legr files, checkpoints or modules; ratios are relative to the first.
        ssh: `user@host` of a board with Python, numpy and onnxruntime; this machine by default.
        python: The Python interpreter there.
        arch: Architecture of checkpoints that do not record it.
        classes: Number of classes, if it differs from the architecture's default.
        input_shape: Shape of one image, where a network does not record it.
        settings: Threads, seconds per network and core.
        progress: Called with events while measuring; `print` will do.

    Returns:
        Median and percentiles in milliseconds and ratios, in the order of `models`.

    Raises:
        BenchError: A file cannot be read, or the board cannot be reached.
        ModelError: A network cannot be exported.
        SettingError: An argument is out of range.

    Example:
        >>> legr_cli.bench(["dense.onnx", "robot.onnx"]).networks[1].ratio
        0.43
    """
    if isinstance(models, str | PathLike) or not models:
        raise SettingError("models must be a list of files or modules")
    opened = {}
    names = []
    for number, model in enumerate(models, 1):
        is_name = isinstance(model, str | PathLike)
        names.append(fspath(model) if is_name else f"network {number}")  # type: ignore[arg-type]
        if not is_name:
            from legr_cli.models.network import as_network

            opened[names[-1]] = as_network(model, input_shape)
    size = None if input_shape is None else tuple(input_shape)
    asked = Asked(tuple(dict.fromkeys(names)), arch, classes, size, opened)
    facts = bench_networks(asked, settings or Bench(), ssh, python, progress=progress or silent)
    return BenchResult(tuple(_latency(row) for row in facts["models"]), facts)


def bench_networks(
    asked: Asked,
    settings: Bench,
    ssh: str | None = None,
    python: str = "python3",
    *,
    need_flops: bool = False,
    progress: Report = silent,
) -> Facts:
    """Connect to a board, or start on this machine, and measure; returns what bench.json holds."""
    place = place_for(ssh, python)
    progress(Status(f"starting on {place.name}"))
    with Board(place, settings.threads, settings.core) as board:
        return measure(board, asked, settings, progress, need_flops)


def _latency(row: Facts) -> Latency:
    """A row of bench.json, by name."""
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


def write_bundle(
    asked: Asked, settings: Bench, folder: Path, say: Callable[[str], None]
) -> list[Path]:
    """Write all that a board without ssh needs to a folder; returns the files."""
    names = asked.names()
    inside = [folder / name for name in file_names(list(names.values()))]
    files = dict(zip(names, inside, strict=True))
    own = [folder / "legr_bench.py", folder / "README.md"]
    given = {
        **asdict(settings),
        "input": asked.input_shape and "x".join(map(str, asked.input_shape)),
    }
    usual = asdict(Bench())
    options = [f"--{key} {value}" for key, value in given.items() if value != usual.get(key)]
    words = " ".join([*(path.name for path in inside), *options])
    text = README.format(words=words, first=inside[0].name)
    with staged() as stage:
        stage.folder(folder)
        for model, data, _ in as_onnx(asked, say):
            stage.file(files[model]).write_bytes(data)
        shutil.copyfile(core.__file__, stage.file(own[0]))
        stage.file(own[1]).write_text(text, encoding="utf-8")
    return [*own, *files.values()]


def read_bench(path: Path) -> Facts:
    """Read a bench.json."""
    try:
        return checked(path, json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise BenchError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BenchError(f"{path} is not readable JSON: {first_line(error)}") from error


def checked(path: Path, raw: Any) -> Facts:
    """The contents of a bench.json, all shown values checked: it may come from anywhere."""
    try:
        data = _cleaned(raw)
    except (ValueError, RecursionError) as error:
        raise BenchError(f"{path} is damaged: {first_line(error)}") from error
    if not isinstance(data, dict) or data.get("format") != core.FORMAT:
        raise BenchError(f'{path} is not a measurement: it has no "format": "{core.FORMAT}"')
    if data.get("version") != core.VERSION:
        raise BenchError(
            f"{path} is a measurement of version {data.get('version')!r}; this legr reads "
            f"{core.VERSION}"
        )
    rows, device = data.get("models"), data.get("device")
    if not isinstance(rows, list) or not rows or not all(map(_is_sound, rows)):
        raise BenchError(f"{path} is damaged: its models are not what legr writes")
    names = [row["name"] for row in rows]
    if len(set(names)) < len(names) or data.get("against") not in names:
        raise BenchError(f"{path} is damaged: its models need different names")
    if not isinstance(device, dict) or not _is_device(device):
        raise BenchError(f"{path} is damaged: its device is not what legr writes")
    notes, settings = data.get("notes"), data.get("settings")
    if not isinstance(notes, list) or not isinstance(settings, dict):
        raise BenchError(f"{path} is damaged: it has no notes or no settings")
    return data


def _cleaned(value: Any) -> Any:
    """JSON without control characters and without numbers that no measurement gives."""
    if isinstance(value, str):
        return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [_cleaned(inside) for inside in value]
    if isinstance(value, int | float) and not abs(value) < _LARGEST:
        raise ValueError(f"{str(value)[:20]} is not a number of a measurement")
    return value


def _is_sound(row: Any) -> bool:
    """Whether a model's row has everything that is shown."""
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        return False
    times = [row.get(key) for key in ("median_ms", "p5_ms", "p95_ms", "spread", "ratio")]
    flops, span, difference = (row.get(key) for key in ("flops", "ratio_range", "difference"))
    return (
        all(map(_is_number, times))
        and (flops is None or (type(flops) is int and flops > 0))
        and (difference is None or _is_number(difference))
        and isinstance(span, list)
        and len(span) == 2
        and all(map(_is_number, span))
        and isinstance(row.get("file", ""), str)
    )


def _is_device(device: Facts) -> bool:
    """Whether everything that is shown of a machine has the right type."""
    words = [device.get(key) for key in ("host", "board", "cpu", "machine", "runtime", "governor")]
    heat, pinned = device.get("temperature_c"), device.get("pinned", [])
    return (
        all(isinstance(word, str | None) for word in words)
        and isinstance(pinned, list)
        and (heat is None or (isinstance(heat, list) and len(heat) == 2))
        and all(number is None or isinstance(number, int | float) for number in heat or [])
    )


def _is_number(number: Any) -> bool:
    """Whether this is a finite number, 0 or more."""
    return isinstance(number, int | float) and 0 <= number < math.inf


@dataclass(frozen=True)
class Point:
    """A network's share of the reference network's FLOPs and latency."""

    name: str
    flops: float
    latency: float

    @property
    def slope(self) -> float | None:
        """Share of latency saved per share of FLOPs saved."""
        return (1 - self.latency) / (1 - self.flops) if self.flops < 1 else None


def points(whole: Facts) -> dict[str, Point]:
    """The networks whose FLOPs are known, if those of the reference are."""
    rows = {row["name"]: row for row in whole["models"]}
    base = rows.get(whole.get("against"), whole["models"][0]).get("flops")
    if not base:
        return {}
    return {
        name: Point(name, row["flops"] / base, row["ratio"])
        for name, row in rows.items()
        if row.get("flops")
    }


def fitted_slope(found: Sequence[Point]) -> tuple[float, float] | None:
    """Slope and intercept of latency over FLOPs, by least squares over at least three points."""
    shares = [point.flops for point in found]
    if len(found) < 3 or max(shares) - min(shares) < 0.01:
        return None
    mean_x = sum(shares) / len(shares)
    mean_y = sum(point.latency for point in found) / len(found)
    top = sum((p.flops - mean_x) * (p.latency - mean_y) for p in found)
    slope = top / sum((x - mean_x) ** 2 for x in shares)
    return slope, mean_y - slope * mean_x
