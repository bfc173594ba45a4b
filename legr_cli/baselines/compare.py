"""`legr_cli.compare`: several pruning methods on one network, fine-tuned alike."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from legr_cli.arguments import as_path, as_shares, as_tuple, check_instance
from legr_cli.baselines.comparison import (
    COMPARISON,
    ComparisonRun,
    Piece,
    comparison,
    run_comparison,
    score_of,
)
from legr_cli.baselines.methods import check_methods, search_of
from legr_cli.baselines.summary import ComparisonRow, MethodSummary, summarize
from legr_cli.data.dataset import Data, described, doubts
from legr_cli.errors import LegrError, OutputError
from legr_cli.files import check_folder, check_resume, staged
from legr_cli.journal import Line, journal, read_header
from legr_cli.models.network import Network, as_network
from legr_cli.models.save import check_card
from legr_cli.progress import Message, Progress, Report, Status, interruptible, reporting, silent
from legr_cli.pruning import analyze
from legr_cli.search.fitness import DEFAULT_FITNESS, fallback_fitness
from legr_cli.search.setup import can_repair, check_fitness
from legr_cli.settings import Compare, Pictures, given
from legr_cli.targets import Target
from legr_cli.training.devices import amp_helps, choose
from legr_cli.training.inputs import Images, as_images, check_outputs, images_for
from legr_cli.training.memory_format import in_memory_format
from legr_cli.training.recipes import settings_of
from legr_cli.training.scores import ACCURACY, Score, headline, shown
from legr_cli.training.tasks import BatchFunction, Task, task_for


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison."""

    rows: tuple[ComparisonRow, ...]  # one per method, target and seed
    methods: tuple[MethodSummary, ...]  # averaged over seeds
    dense: Score  # of the dense network
    settings: Compare
    folder: Path
    facts: Line  # the contents of compare.json

    @property
    def score_name(self) -> str:
        """What the scores of rows and methods are, such as accuracy, mean IoU or agreement."""
        return str(self.facts.get("score", ACCURACY))


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
    loss: BatchFunction | None = None,
    score: BatchFunction | None = None,
    outputs: str | None = None,
    validation: Any = None,
    input_shape: Sequence[int] | None = None,
    arch: str | Callable[..., nn.Module] | None = None,
    normalize: str | None = None,
    resize: str | None = None,
    crop: float | None = None,
    transform: str | None = None,
    random_crop: str | None = None,
    flip: bool | None = None,
    ignore_class_names: bool = False,
    download: bool = False,
    device: str = "auto",
    resume: bool = False,
    force: bool = False,
    progress: Report | None = None,
) -> Comparison:
    """Compare pruning methods on one network: score, FLOPs and cost.

    All methods share units, targets, images and fine-tuning, so only the method itself differs.
    Images without labels are scored by how close the outputs are to the dense network's, and
    fine-tuned towards them.

    Args:
        model: The dense network; it is not changed.
        data: A SPEC such as `"cifar10:DIR"`, `"pairs:DIR"` (label pictures) or `"images:DIR"` (no
            labels), a DataLoader, a pair of tensors, a tensor of images, or an iterable of batches,
            with or without labels.
        out: Folder for compare.json, rankings, networks and journals.
        methods: Any of legr, norm, uniform, random, legr-ddpg, taylor, fisher, amc and morphnet.
        flops: Shares of the FLOPs to compare at.
        recipe: Recipe to fine-tune every network with.
        epochs: Number of epochs, instead of the recipe's.
        candidates: Number of candidates per search; 100 by default, 400 with another fitness than
            repair.
        repeats: Number of repetitions, with seeds `seed`, `seed + 1` and so on.
        seed: Random seed; also selects the held-out images.
        settings: All settings, instead of `methods`, `flops`, `recipe` and `epochs`; the other
            arguments override them.
        loss: `loss(outputs, targets)`, the mean over a batch; cross entropy by default.
        score: `score(outputs, targets)`, the mean over a batch, higher is better; accuracy by
            default, or the negative loss if you pass only `loss`.
        outputs: What outputs of images × numbers are, where they are compared with another
            network's: `"classes"` for class scores, `"values"` for numbers such as angles.
        validation: Your own held-out data, instead of a tenth of `data`.
        input_shape: Shape of one image; needed for a SPEC and a module that is not from legr.
        arch: `"module:factory"` of your own network, or the factory itself.
        normalize: For a SPEC: mean and standard deviation, in the format of `--normalize`.
        resize: For a SPEC: `"crop"`, `"squash"`, `"pad"` or `"none"`, as for `--resize`. It and the
            next three default to what the network's card records, or else to the dataset's usual.
        crop: For `resize="crop"`: side of the center crop, relative to the resized image.
        transform: For a SPEC: `"module:function"` that makes the input of a PIL image, instead of
            resizing, cropping and normalizing it.
        random_crop: For a SPEC: random crops in training, `"none"`, `"padded"` or `"resized"`.
        flip: For a SPEC: whether to mirror half of the training images.
        ignore_class_names: For a SPEC: number classes in sorted order, even if the network's card
            names others.
        download: For a SPEC: download the dataset first, if torchvision provides it.
        device: `"auto"`, `"cpu"`, `"cuda"`, `"cuda:1"` or `"mps"`.
        resume: Resume the comparison in `out`.
        force: Overwrite the comparison in `out`.
        progress: Called with progress events, for example `print`.

    Returns:
        One row per method, target and seed, and a summary of each method.

    Raises:
        DataError: The data is empty, has labels out of range or does not match the network.
        SettingError: An argument is out of range, or a method is unknown.
        OutputError: `out` already contains a comparison, or cannot be written.

    Example:
        >>> result = legr_cli.compare(dense, loader, "versus", flops=[0.3, 0.5], epochs=10)
    """
    check_instance(settings, Compare, "settings")
    if settings is None:
        targets = tuple(Target("flops", share) for share in as_shares(flops, "flops"))
        training = settings_of(recipe, **given(epochs=epochs))
        settings = Compare(
            methods=check_methods(as_tuple(methods, "methods")), targets=targets, training=training
        )
    overrides = given(candidates=candidates, repeats=repeats, seed=seed)
    images = as_images(
        data,
        validation,
        normalize=normalize,
        download=download,
        pictures=Pictures(
            resize=resize, crop=crop, random_crop=random_crop, flip=flip, transform=transform
        ),
        ignore_class_names=ignore_class_names,
    )
    network = as_network(model, input_shape or images.shape, arch).copied()
    if arch is not None:
        check_card(network)  # or the files could not be opened again
    return compare_network(
        network,
        images,
        replace(settings, **overrides),
        as_path(out, "out"),
        resume=resume,
        force=force,
        task=task_for(loss, score, images.task, outputs or network.outputs),
        device=device,
        progress=reporting(progress),
    )


def compare_network(
    network: Network,
    images: Images,
    settings: Compare,
    folder: Path,
    *,
    resume: bool = False,
    force: bool = False,
    task: Task | None = None,
    device: str = "auto",
    command: str = "",
    progress: Report = silent,
) -> Comparison:
    """Run a comparison to its end, and write its results to `folder`.

    `task` is what the data implies unless given.
    """
    _check_output(folder, resume, force)
    task = task or images.task
    if settings.fitness is not None:
        search_of(settings, (settings.targets[0].value,), settings.seed)  # validates
    progress(Status("grouping channels into units"))
    network.model.float()  # images are float32
    analysis = analyze(network)
    fitness = settings.fitness
    if fitness is None:
        fitness = DEFAULT_FITNESS if can_repair(analysis) else fallback_fitness(task)
    settings = _resolved(settings, fitness, device, progress)
    check_fitness(analysis, fitness)
    progress(Status("loading the images"))

    def open_data(seed: int) -> Data:
        return in_memory_format(network.model, images_for(network, images, seed, task))

    first = open_data(settings.seed)
    check_outputs(network.model, first, task)

    inputs = analysis, open_data, settings, device, folder, command
    run = ComparisonRun(*inputs, lambda *_: None, task)
    with _results_in(folder):
        facts = _run_and_write(run, first, resume, force, progress)
    if all("error" in row for row in facts["rows"]):
        failed = facts["rows"][0]
        raise LegrError(f"every method failed; {failed['method']}: {failed['error']}")
    rows = tuple(map(ComparisonRow.from_line, facts["rows"]))
    dense = Score.from_line(facts["dense"])
    return Comparison(rows, tuple(summarize(rows)), dense, settings, folder, facts)


def _resolved(settings: Compare, fitness: str, device: str, progress: Report) -> Compare:
    """Fill in what depends on the fitness; turn off amp where it does not help."""
    settings = replace(settings, fitness=fitness)
    search = search_of(settings, (settings.targets[0].value,), settings.seed)  # validates
    training = settings.training
    training = replace(training, amp=training.amp and amp_helps(choose(device), progress))
    return replace(
        settings,
        steps=search.steps,
        candidates=search.candidates,
        val_images=search.val_images,
        training=training,
    )


def _run_and_write(
    run: ComparisonRun, data: Data, resume: bool, force: bool, progress: Report
) -> Line:
    """Do all pieces that are not recorded, and write compare.json; return its contents."""
    folder, total = run.folder, len(run.pieces())
    path = folder / "compare.jsonl"
    previous = read_header(path, COMPARISON) if resume else None
    network = run.analysis.network
    dense = previous["dense"] if previous else score_of(run, network, data, "test")
    header = run.header(data, dense)
    with journal(path, COMPARISON, header, resume, force) as book:
        if force:
            _delete_results(folder)
        opening = _opening_messages(run, dense, list(book.lines.values()), total)
        for text in (*opening, *described(data, training=True), *doubts(data)):
            progress(Message(text))

        def report(done: int, piece: Piece, text: str) -> None:
            title = f"{done + 1}/{total} {piece.method} {piece.target.value:.0%} #{piece.seed}"
            progress(Progress(done, total, title, (text,)))

        with interruptible(lambda: f"{len(book.lines)} of {total} networks"):
            run_comparison(replace(run, report=report), book)
        facts = comparison(run, data, header, book)
    with staged() as files:
        text = json.dumps(facts, indent=1, allow_nan=False) + "\n"
        files.file(folder / "compare.json").write_text(text, encoding="utf-8")
    return facts


@contextlib.contextmanager
def _results_in(folder: Path) -> Iterator[None]:
    """Create the folder; remove it again if the run fails before it has recorded anything."""
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        yield
    except LegrError:
        if is_new and not any(folder.rglob("*.jsonl")):  # empty journals delete themselves
            shutil.rmtree(folder)
        raise


def _opening_messages(run: ComparisonRun, dense: Line, rows: list[Line], total: int) -> list[str]:
    """What is compared, how much of it is done, and recorded networks that are missing."""
    known = f"{headline(dense)} {shown(dense)} on {dense['images']} images"
    messages = [
        f"{run.analysis.network.arch}: {known}; {total} networks to prune and fine-tune, "
        f"{len(rows)} of them done"
    ]
    missing = [row for row in rows if not (run.folder / row.get("file", "")).exists()]
    if missing:
        messages.append(
            f"{len(missing)} of these are no longer in {run.folder}; their results are still used"
        )
    return messages


def _delete_results(folder: Path) -> None:
    """Delete an earlier comparison; the journal's lock ensures that no process is writing it."""
    for name in ("rankings", "pruned", "tuned"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "compare.json").unlink(missing_ok=True)


def _check_output(out: Path, resume: bool, force: bool) -> None:
    """Check the folder before any work is done; raise if it cannot be used."""
    check_resume(resume, force)
    check_folder(out, "compare.jsonl")
    if (out / "compare.jsonl").exists() and not (resume or force):
        raise OutputError(
            f"{out} already contains a comparison: pass --resume to resume it, --force to "
            "overwrite it, or choose another --out"
        )
