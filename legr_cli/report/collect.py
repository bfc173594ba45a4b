"""From files to facts: networks with what they reached, measurements, rankings and searches."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from legr_cli.baselines.summary import FORMAT as COMPARISON
from legr_cli.baselines.summary import MethodSummary, is_comparison, summarize
from legr_cli.deploy import core
from legr_cli.deploy.bench import checked
from legr_cli.errors import LegrError, ReportError, first_line
from legr_cli.models.network import Card, read_card
from legr_cli.ranking import FORMAT as RANKING

Line = dict[str, Any]


@dataclass(frozen=True)
class Latency:
    """What a network takes on a device."""

    device: str
    ms: float
    ratio: float


@dataclass(frozen=True)
class Net:
    """A network and all that is known of it."""

    file: Path
    method: str  # "legr", "norm", "uniform" or "dense"
    arch: str
    flops: int | None
    dense_flops: int | None
    params: int | None
    accuracy: float | None = None  # on the test images
    before: float | None = None  # on the validation images, before it was tuned
    widths: dict[str, tuple[int, int]] = field(default_factory=dict)  # channels kept, of how many
    commands: list[str] = field(default_factory=list)
    made_with: dict[str, str] = field(default_factory=dict)
    target: float | None = None  # the share of FLOPs that was asked for
    prefix: str = ""  # its architecture, where there are several
    latencies: list[Latency] = field(default_factory=list)

    @property
    def share(self) -> float | None:
        """Of the dense network's FLOPs."""
        return self.flops / self.dense_flops if self.flops and self.dense_flops else None

    @property
    def short(self) -> str:
        """`legr 40%`, among networks of one architecture."""
        share = None if self.method == "dense" else self.target or self.share
        return self.method + ("" if share is None else f" {share:.0%}")

    @property
    def label(self) -> str:
        """The same, with the architecture where there are several."""
        return self.prefix + self.short


@dataclass(frozen=True)
class Search:
    """A ranking, and the candidates that led to it."""

    file: Path
    ranking: Line
    candidates: list[Line]


@dataclass(frozen=True)
class Comparison:
    """Methods side by side; of several files where seeds were compared one by one."""

    files: list[Path]
    data: Line

    @property
    def summarize(self) -> list[MethodSummary]:
        """Means over all seeds."""
        return summarize(self.data["rows"])

    @property
    def name(self) -> str:
        """Of its folder; of several, of the one that they are in."""
        folder = self.files[0].parent
        return (folder if len(self.files) == 1 else folder.resolve().parent).name or "here"

    def stands_for(self, path: Path) -> bool:
        """Whether a file is one of the many that it sums up; networks of its first seed are not."""
        folder, own = path.parent.name, any(path.parent.parent == f.parent for f in self.files)
        first = min((row["seed"] for row in self.data["rows"]), default=0)
        shown = folder == "tuned" and path.stem.endswith(f"-seed{first}")
        return own and folder in ("rankings", "pruned", "tuned") and not shown


@dataclass(frozen=True)
class Facts:
    """All that a report shows."""

    nets: list[Net]
    benches: list[Line]
    searches: list[Search]
    comparisons: list[Comparison] = field(default_factory=list)


def collect(paths: Iterable[Path]) -> Facts:
    """Read files, and in folders all that legr writes; what was tuned stands for what it was."""
    cards: dict[Path, Card] = {}
    benches: list[Line] = []
    searches: list[Search] = []
    found = _found(paths)
    comparisons = _together(_comparison(path) for path, _ in found if path.name == "compare.json")
    for path, asked in found:
        if not asked and any(comparison.stands_for(path) for comparison in comparisons):
            continue
        try:
            if path.suffix == ".safetensors":
                cards[path] = read_card(path)
            elif path.suffix == ".json":
                _read_json(path, benches, searches, asked)
            elif asked:
                raise ReportError(f"{path} is no network, ranking or measurement of legr's")
        except LegrError:
            if asked:
                raise
    nets = [_net(path, card, cards) for path, card in cards.items()]
    nets = [_timed(net, benches) for net in nets]
    if not (nets or benches or searches or comparisons):
        raise ReportError("nothing of legr's was found there: name its files or folders")
    nets += _dense(nets, benches)
    if len({net.arch for net in nets}) > 1:
        nets = [replace(net, prefix=f"{net.arch} ") for net in nets]
    order = {"dense": 0, "legr": 1}
    nets.sort(key=lambda n: (n.arch, order.get(n.method, 2), n.method, n.flops or 0, n.file))
    return Facts(_latest(nets), benches, searches, comparisons)


def _dense(nets: list[Net], benches: list[Line]) -> list[Net]:
    """Dense networks that were timed beside others and have no file here."""
    known = {(net.arch, net.flops) for net in nets}
    found: dict[tuple[str, int], Net] = {}
    for bench in benches:
        row = next(row for row in bench["models"] if row["name"] == bench["against"])
        arch, flops = str(row.get("arch")), row.get("flops")
        if flops and (arch, flops) not in known:
            file = Path(row.get("file", row["name"]))
            net = Net(file, "dense", arch, flops, flops, row.get("params"))
            found.setdefault((arch, flops), net)
    return [_timed(net, benches) for net in found.values()]


def _found(paths: Iterable[Path]) -> list[tuple[Path, bool]]:
    """Files, each once, and whether it was named itself."""
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


def _comparison(path: Path) -> Comparison:
    """A compare.json, checked."""
    data = _json(path)
    if data.get("format") != COMPARISON or not is_comparison(data):
        raise ReportError(f"{path} is damaged: it is not what legr compare writes")
    return Comparison([path], data)


def _together(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Comparisons of the same, but for their seeds, as one."""
    by_subject: dict[str, list[Comparison]] = {}
    for found in comparisons:
        seeds = {row["seed"] for row in found.data["rows"]}
        settings = {**_object(found.data.get("settings")), "seed": 0, "repeats": 0}
        about = [found.data.get(key) for key in ("arch", "input", "weights_sha256", "statistics")]
        images = _object(found.data.get("data"))  # its sha256 is of a split, another by seed
        about += [images.get(key) for key in ("kind", "classes", "images")]
        alike = by_subject.setdefault(json.dumps([*about, settings]), [])
        if any(row["seed"] in seeds for other in alike for row in other.data["rows"]):
            alike = by_subject.setdefault(str(found.files[0]), [])  # the same once more
        alike.append(found)
    return [_sum(alike) for alike in by_subject.values()]


def _sum(alike: list[Comparison]) -> Comparison:
    """One comparison with the rows of several."""
    rows = [row for found in alike for row in found.data["rows"]]
    commands = [found.data["command"] for found in alike if "command" in found.data]
    data = {**alike[0].data, "rows": rows, "command": "\n".join(map(str, commands))}
    return Comparison([path for found in alike for path in found.files], data)


def _json(path: Path) -> Line:
    """An object; other JSON tells us nothing."""
    try:
        return _object(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(f"{path} is no readable JSON: {first_line(error)}") from error


def _read_json(path: Path, benches: list[Line], searches: list[Search], asked: bool) -> None:
    """A measurement or a ranking; other JSON only matters if the user named it."""
    data = _json(path)
    kind = data.get("format")
    if kind == core.FORMAT:
        benches.append(checked(path, data))
    elif kind == RANKING:
        searches.append(Search(path, _with_rows(path, data), _candidates(path, data)))
    elif asked and kind != COMPARISON:
        raise ReportError(f"{path} is no ranking and no measurement of legr's")


def _with_rows(path: Path, data: Line) -> Line:
    """A ranking whose rows can be drawn."""
    rows = data.get("layers")
    if not isinstance(rows, list) or not all(
        isinstance(row, dict)
        and isinstance(row.get("name"), str)
        and all(isinstance(x, int | float) and abs(x) < 1e30 for x in _row_numbers(row))
        for row in rows
    ):
        raise ReportError(f"{path} is damaged: its layers are not what legr writes")
    return data


def _row_numbers(row: Line) -> list[Any]:
    """α and κ, or a score for each filter."""
    scores = row.get("scores")
    return scores if isinstance(scores, list) else [row.get("alpha"), row.get("kappa")]


def _candidates(path: Path, data: Line) -> list[Line]:
    """The lines of the history beside a ranking, as far as it is there and whole."""
    history = path.parent / Path(str(data.get("history", ""))).name
    found = []
    if history.is_file():
        for text in history.read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
            try:
                line = json.loads(text)
            except ValueError:
                break
            if isinstance(line, dict) and _share(line.get("accuracy")) is not None:
                found.append(line)
    return sorted(found, key=lambda line: _cost(line.get("candidate")) or 0)


def _net(path: Path, card: Card, cards: dict[Path, Card]) -> Net:
    """A network of a file's header, in which anything may stand that JSON allows."""
    notes, dense = card.notes, _cost(card.notes.get("dense_flops"))
    if card.kept is None and dense is None:  # its pruned peers know what it costs
        peers = (c.notes.get("dense_flops") for c in cards.values() if c.arch == card.arch)
        dense = next(filter(None, map(_cost, peers)), None)
    training = _object(notes.get("training"))
    commands = notes.get("commands")
    versions = {"legr": notes.get("legr"), **_object(training.get("made_with"))}
    kept, of = card.kept or {}, _object(notes.get("dense_channels"))
    return Net(
        file=path,
        method="dense" if card.kept is None else str(notes.get("method", "legr")),
        arch=str(card.arch),
        flops=dense if card.kept is None else _cost(_object(notes.get("flops")).get("after")),
        dense_flops=dense,
        params=_cost(_object(notes.get("params")).get("after")),
        accuracy=_share(_object(training.get("test")).get("accuracy")),
        before=_share(_object(training.get("before")).get("accuracy")) if kept else None,
        target=_share(_object(notes.get("target")).get("flops")),
        widths={n: (len(kept[n]), _cost(of[n]) or len(kept[n])) for n in kept if n in of},
        commands=[str(c) for c in commands] if isinstance(commands, list) else [],
        made_with={name: str(version) for name, version in versions.items() if version},
    )


def _object(value: Any) -> Line:
    """An object of JSON; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def _cost(value: Any) -> int | None:
    """A number of FLOPs, parameters or channels, if it is one."""
    return value if type(value) is int and 0 < value < 2**63 else None


def _share(value: Any) -> float | None:
    """An accuracy, if it is one."""
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None


def _timed(net: Net, benches: list[Line]) -> Net:
    """With what it took on each device."""
    for bench in benches:
        row = row_of(net, bench)
        if row is not None:
            net.latencies.append(Latency(device_of(bench), row["median_ms"], row["ratio"]))
    return net


def row_of(net: Net, bench: Line) -> Line | None:
    """A network's row in a measurement, or that of its tuned or untuned twin."""
    own, cost, rows = net.file.resolve(), (net.arch, net.flops), bench["models"]
    same = [row for row in rows if "file" in row and Path(row["file"]).resolve() == own]
    twin = [row for row in rows if net.flops and (row.get("arch"), row.get("flops")) == cost]
    return next(iter(same or twin), None)


def device_of(bench: Line) -> str:
    """The name of what was measured on."""
    device = bench["device"]
    return str(device.get("board") or device.get("cpu") or device.get("machine") or "?")


def _latest(nets: list[Net]) -> list[Net]:
    """Of networks with the same method and cost, the tuned one where there is one."""
    tuned = {(net.method, net.arch, net.flops) for net in nets if net.accuracy is not None}
    return [
        net
        for net in nets
        if net.accuracy is not None or (net.method, net.arch, net.flops) not in tuned
    ]
