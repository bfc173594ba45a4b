"""`legr_cli.compare`: several pruning methods on one network, fine-tuned alike."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from legr_cli.baselines.comparison import (
    COMPARISON,
    ComparisonRun,
    Piece,
    comparison,
    measured,
    run_comparison,
)
from legr_cli.baselines.methods import check_methods
from legr_cli.baselines.summary import ComparisonRow, MethodSummary, summarize
from legr_cli.data.dataset import Data, described, doubts
from legr_cli.errors import LegrError, OutputError, SettingError
from legr_cli.files import check_folder, staged
from legr_cli.journal import Line, journal, read_header
from legr_cli.models.network import Network, as_network, own_copy
from legr_cli.progress import Message, Progress, Report, Status, silent
from legr_cli.pruning import analyze
from legr_cli.search.fitness import adaptation
from legr_cli.search.setup import check_fitness
from legr_cli.settings import Compare, Pictures
from legr_cli.targets import Target
from legr_cli.training.devices import choose
from legr_cli.training.finetune import amp_helps
from legr_cli.training.inputs import Images, as_images, check_outputs, images_for, in_memory_format
from legr_cli.training.recipes import settings_of


@dataclass(frozen=True)
class Comparison:
    """Results of a comparison."""

    rows: tuple[ComparisonRow, ...]  # one for each method, target and seed
    methods: tuple[MethodSummary, ...]  # averaged over seeds
    dense: Line  # accuracy, loss and images: of the dense network
    settings: Compare
    folder: Path
    facts: Line  # all of it, as compare.json has it


def compare(
    model: nn.Module,
    data: Any,
    out: str | PathLike[str],
    *,
    methods: Sequence[str] = ("legr", "uniform"),
    flops: Sequence[float] = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    recipe: str = "quick",
    epochs: int | None = None,
    candidates: int | None = None,
    repeats: int | None = None,
    seed: int | None = None,
    settings: Compare | None = None,
    validation: Any = None,
    input_shape: Sequence[int] | None = None,
    arch: str | Callable[..., nn.Module] | None = None,
    normalize: str | None = None,
    resize: str | None = None,
    crop: float | None = None,
    random_crop: str | None = None,
    flip: bool | None = None,
    ignore_class_names: bool = False,
    download: bool = False,
    device: str = "auto",
    resume: bool = False,
    force: bool = False,
    progress: Report | None = None,
) -> Comparison:
    """Compare pruning methods on one network: accuracy, FLOPs and cost.

    All methods share units, budgets, images and fine-tuning, so only the method itself differs.

    Args:
        model: The dense network; it is not changed.
        data: A SPEC such as `"cifar10:DIR"`, a DataLoader, a pair of tensors, or an iterable of
            `(images, targets)`.
        out: Folder to write: compare.json, rankings, networks and journals.
        methods: Some of legr, norm, uniform, random, legr-ddpg, taylor, fisher, amc and morphnet.
        flops: Shares of the FLOPs to compare at.
        recipe: Recipe to fine-tune every network with.
        epochs: Number of epochs, instead of the recipe's.
        candidates: Candidates of every search; 400 by default.
        repeats: Number of repetitions, with seeds `seed`, `seed + 1` and so on.
        seed: Random seed; also selects the held-out images.
        settings: Everything else, instead of `methods`, `flops`, `recipe` and `epochs`.
        validation: Held-out data of your own, instead of a tenth of `data`.
        input_shape: Shape of one image, for a module that does not come from legr and a SPEC.
        arch: `"module:factory"` of a network of your own, or the factory itself.
        normalize: For a SPEC: mean and standard deviation, as `--normalize` takes them.
        resize: For a SPEC: `"crop"`, `"squash"`, `"pad"` or `"none"`, as `--resize`; by default
            what the network's card records, or else the dataset's default. So are the next three.
        crop: For `resize="crop"`: side of the central crop, relative to the picture's.
        random_crop: For a SPEC: crops in training, `"none"`, `"padded"` or `"resized"`.
        flip: For a SPEC: whether training mirrors half of the pictures.
        ignore_class_names: For a SPEC: number classes in sorted order, whatever the network's
            card calls them.
        download: For a SPEC: download the dataset first, if torchvision provides it.
        device: `"auto"`, `"cpu"`, `"cuda"`, `"cuda:1"` or `"mps"`.
        resume: Resume the comparison in `out`.
        force: Overwrite the comparison in `out`.
        progress: Called with events while comparing; `print` will do.

    Returns:
        One row for each method, target and seed, and summaries by method.

    Raises:
        DataError: The data is empty, has labels out of range or does not fit the network.
        SettingError: An argument is out of range, or a method is unknown.
        OutputError: `out` holds a comparison already, or cannot be written.

    Example:
        >>> found = legr_cli.compare(dense, loader, "versus", flops=[0.3, 0.5], epochs=10)
    """
    if settings is None:
        targets = tuple(Target("flops", share) for share in flops)
        lengths = {} if epochs is None else {"epochs": epochs}
        training = settings_of(recipe, **lengths)
        settings = Compare(methods=check_methods(methods), targets=targets, training=training)
    given = {"candidates": candidates, "repeats": repeats, "seed": seed}
    chosen: dict[str, Any] = {n: value for n, value in given.items() if value is not None}
    images = as_images(
        data,
        validation,
        normalize=normalize,
        download=download,
        pictures=Pictures(resize=resize, crop=crop, random_crop=random_crop, flip=flip),
        ignore_class_names=ignore_class_names,
    )
    network = as_network(model, input_shape or images.shape, arch)
    return compare_network(
        replace(network, model=own_copy(network.model)),
        images,
        replace(settings, **chosen),
        Path(out),
        resume=resume,
        force=force,
        device=device,
        progress=progress or silent,
    )


def compare_network(
    network: Network,
    images: Images,
    settings: Compare,
    folder: Path,
    *,
    resume: bool = False,
    force: bool = False,
    device: str = "auto",
    command: str = "",
    progress: Report = silent,
) -> Comparison:
    """Run a comparison to its end, and write compare.json."""
    check_output(folder, resume, force)
    settings = _resolved(settings, device, progress)
    progress(Status("grouping channels into units"))
    network.model.float()  # images are float32
    analysis = analyze(network)
    check_fitness(analysis, settings.fitness)
    progress(Status("loading the images"))

    def open_images(seed: int) -> Data:
        return in_memory_format(network.model, images_for(network, images, seed))

    first = open_images(settings.seed)
    check_outputs(network.model, first)

    run = ComparisonRun(analysis, open_images, settings, device, folder, command, lambda *_: None)
    facts = _recorded(run, first, resume, force, progress)
    if all("error" in row for row in facts["rows"]):
        failed = facts["rows"][0]
        raise LegrError(f"nothing could be compared: {failed['method']}: {failed['error']}")
    rows = tuple(map(ComparisonRow.from_line, facts["rows"]))
    return Comparison(rows, tuple(summarize(rows)), facts["dense"], settings, folder, facts)


def _resolved(settings: Compare, device: str, progress: Report) -> Compare:
    """The settings with the steps that the fitness implies, and amp only where it helps."""
    kind, amp = adaptation(settings.fitness), settings.training.amp
    steps = kind.steps if settings.steps is None or kind.adapt is None else settings.steps
    training = replace(settings.training, amp=amp and amp_helps(choose(device), progress))
    return replace(settings, steps=steps, training=training)


def _recorded(run: ComparisonRun, data: Data, resume: bool, force: bool, progress: Report) -> Line:
    """Do all that is not in the journal yet; returns what compare.json holds."""
    folder, total = run.folder, len(run.pieces())
    folder.mkdir(exist_ok=True)
    path = folder / "compare.jsonl"
    previous = read_header(path, COMPARISON) if resume else None
    network = run.analysis.network
    dense = previous["dense"] if previous else measured(run.device, network, data, "test")
    header = run.header(data, dense)
    with journal(path, COMPARISON, header, resume, force) as book:
        if force:
            _clear(folder)
        about_data = [*described(data, training=True), *doubts(data)]
        for text in [*_opening_lines(run, dense, list(book.lines.values()), total), *about_data]:
            progress(Message(text))

        def tell(done: int, piece: Piece, text: str) -> None:
            title = f"{done + 1}/{total} {piece.method} {piece.target.value:.0%} #{piece.seed}"
            progress(Progress(done, total, title, (text,)))

        try:
            run_comparison(replace(run, tell=tell), book)
        except KeyboardInterrupt:
            done = f"{len(book.lines)} of {total} networks"
            raise KeyboardInterrupt(f"interrupted after {done}") from None
        facts = comparison(run, header, book)
    with staged() as files:
        text = json.dumps(facts, indent=1, allow_nan=False) + "\n"
        files.file(folder / "compare.json").write_text(text, encoding="utf-8")
    return facts


def _opening_lines(run: ComparisonRun, dense: Line, rows: list[Line], total: int) -> list[str]:
    """Lines to report before the comparison: what is compared, and what is missing."""
    lines = [
        f"{run.analysis.network.arch}: {dense['accuracy']:.2%} on {dense['images']} images; "
        f"{total} networks to make, {len(rows)} of them recorded already"
    ]
    lost = [row for row in rows if not (run.folder / row.get("file", "")).exists()]
    if lost:
        lines.append(f"{len(lost)} of these are no longer in {run.folder}: they stay as recorded")
    return lines


def _clear(folder: Path) -> None:
    """Remove an earlier comparison; the journal's lock keeps out whoever still works on it."""
    for name in ("rankings", "pruned", "tuned"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "compare.json").unlink(missing_ok=True)


def check_output(out: Path, resume: bool, force: bool) -> None:
    """Check the folder before any work is done."""
    if resume and force:
        raise SettingError("--resume and --force cannot be combined")
    check_folder(out, "compare.jsonl")
    if (out / "compare.jsonl").exists() and not (resume or force):
        raise OutputError(
            f"{out} already contains a comparison: pass --resume to resume it, --force to "
            "overwrite it, or choose another --out"
        )
