"""`legr_cli.finetune`: a network and images → a trained network."""

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from legr_cli.data.dataset import Data, described, doubts
from legr_cli.errors import OutputError, SettingError
from legr_cli.journal import Line
from legr_cli.models.card import with_command
from legr_cli.models.network import Network, as_network, own_copy
from legr_cli.progress import Message, Progress, Report, Status, silent
from legr_cli.settings import Pictures, Training
from legr_cli.training.devices import half_precision
from legr_cli.training.evaluate import refresh
from legr_cli.training.inputs import (
    Images,
    Start,
    as_images,
    check_teacher,
    open_both,
    open_teacher,
)
from legr_cli.training.loop import has_statistics
from legr_cli.training.meter import StepProgress
from legr_cli.training.process_group import process_group
from legr_cli.training.recipes import settings_of
from legr_cli.training.result import TrainingCallbacks, train_to_end
from legr_cli.training.resume import Files, key_of, recorded
from legr_cli.training.run import Run
from legr_cli.training.scores import CLASSIFICATION, OwnFunction, Task, shown, task_for
from legr_cli.training.setup import TrainingSetup, training_setup

RECALIBRATION = "bn-recalibrate"  # what files name the recipe that only re-estimates statistics


@dataclass(frozen=True)
class FinetuneResult:
    """A trained network and what it reached."""

    network: Network
    before: Line  # accuracy, loss and images, on the validation images
    validation: Line | None  # None: these were trained on as well
    test: Line | None  # None: the data has no test images
    epochs: int
    best_epoch: int
    seconds: float
    settings: Line
    complete_before: bool = False  # whether an earlier run had finished it


def finetune(
    model: nn.Module,
    data: Any,
    *,
    recipe: str = "quick",
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    settings: Training | None = None,
    teacher: nn.Module | None = None,
    loss: OwnFunction | None = None,
    score: OwnFunction | None = None,
    validation: Any = None,
    input_shape: Sequence[int] | None = None,
    normalize: str | None = None,
    resize: str | None = None,
    crop: float | None = None,
    random_crop: str | None = None,
    flip: bool | None = None,
    ignore_class_names: bool = False,
    download: bool = False,
    device: str = "auto",
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: Report | None = None,
) -> nn.Module:
    """Train a copy of a network and return its best weights.

    The weights of the epoch with the best score on held-out images are kept. The same seed gives
    the same weights on a CPU.

    Args:
        model: The network to train; it is not changed.
        data: A SPEC such as `"cifar10:DIR"`, a DataLoader, a pair of tensors, or an iterable of
            `(images, targets)`. From a DataLoader, legr takes the dataset, the `collate_fn` and
            the number of workers; it draws the batches itself, so that runs can be resumed.
        recipe: Name of a recipe (`legr finetune --recipes` lists them).
        epochs: Number of epochs, instead of the recipe's.
        lr: Highest learning rate, instead of the recipe's.
        batch_size: Images per batch, instead of the recipe's.
        seed: Random seed; also selects the held-out images.
        settings: All settings, instead of `recipe`; the arguments above still override it.
        teacher: A network to distill from, such as the dense one.
        loss: `loss(outputs, targets)`, the mean over a batch; cross entropy by default.
        score: `score(outputs, targets)`, the mean over a batch, higher is better; accuracy by
            default, or the negative loss if you pass `loss` alone.
        validation: Held-out data of your own; by default a tenth of `data` is held out.
        input_shape: Shape of one image, for a module that does not come from legr and a SPEC.
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
        out: A `.safetensors` file to write. With it, an interrupted run can be resumed.
        resume: Resume the run that `out` records; the result matches an uninterrupted one.
        force: Overwrite `out`.
        progress: Called with events while training; `print` will do.

    Returns:
        The trained module in evaluation mode, on the CPU. Its card records the training.

    Raises:
        DataError: The data is empty, has labels out of range or does not fit the network.
        ModelError: The network cannot be trained.
        SettingError: An argument is out of range, or arguments contradict each other.
        TrainingError: The loss became NaN or infinite, or `out` cannot be resumed.
        OutputError: `out` exists or cannot be written.

    Example:
        >>> tuned = legr_cli.finetune(smaller, loader, teacher=dense, epochs=10)
    """
    given = {"epochs": epochs, "lr": lr, "batch_size": batch_size, "seed": seed}
    chosen = {name: value for name, value in given.items() if value is not None}
    planned = replace(settings, **chosen) if settings else settings_of(recipe, **chosen)  # type: ignore[arg-type]
    if out is None and (resume or force):
        raise OutputError("resume and force need out, the file that records the run")
    images = as_images(
        data,
        validation,
        normalize=normalize,
        download=download,
        pictures=Pictures(resize=resize, crop=crop, random_crop=random_crop, flip=flip),
        ignore_class_names=ignore_class_names,
    )
    network = as_network(model, input_shape or images.shape)
    start = Start(replace(network, model=own_copy(network.model)))
    taught_by = None if teacher is None else as_network(teacher, network.input_shape)
    with _output(out) as path:
        result = finetune_network(
            start,
            images,
            planned,
            Files(path, resume, force),
            teacher=taught_by and replace(taught_by, model=own_copy(taught_by.model)),
            task=task_for(loss, score),
            device=device,
            progress=progress or silent,
        )
    assert result is not None  # there is one process, and it leads
    return result.network.carried().eval()


@contextlib.contextmanager
def _output(out: str | PathLike[str] | None) -> Iterator[Path]:
    """The file to write; without one, a temporary file that records the run while it lasts."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="legr-") as folder:
        yield Path(folder) / "network.safetensors"


def finetune_network(
    start: Start,
    images: Images,
    settings: Training,
    files: Files,
    *,
    teacher: "Network | tuple[str, str | None] | None" = None,
    task: Task = CLASSIFICATION,
    device: str = "auto",
    compiled: bool = False,
    loaders: int | None = None,
    recalibrate_only: bool = False,
    command: str | None = None,
    progress: Report = silent,
) -> FinetuneResult | None:
    """Open network, images and teacher, train, and write the file.

    `teacher` is a network, or a checkpoint and its architecture. Returns None in processes that do
    not lead.
    """
    with process_group(device) as group:
        report = progress if group.is_leader else silent
        if group.is_leader:
            files.check()
        settings = replace(settings, amp=settings.amp and amp_helps(group.device, report))
        report(Status("loading the network and the images"))
        network, data = open_both(start, images, settings.seed, group, task)
        if isinstance(teacher, tuple):
            teacher = open_teacher(*teacher, network, data, images, task)
        elif teacher is not None:
            check_teacher(teacher, data, images, task)
        recorded_as = {"recipe": RECALIBRATION, "seed": settings.seed} if recalibrate_only else None
        setup = training_setup(network, data, settings, group, teacher, task, recorded_as)
        if recalibrate_only:
            return _recalibrate(setup, files, command)
        return train_setup(setup, files, compiled, loaders, command, report)


def amp_helps(device: torch.device, progress: Report) -> bool:
    """Whether mixed precision is faster on a device; reports if it is not."""
    if half_precision(device) is not None:
        return True
    progress(Message(f"ignoring --amp: mixed precision is slower on this {device.type}"))
    return False


def train_setup(
    setup: TrainingSetup,
    files: Files,
    compiled: bool = False,
    loaders: int | None = None,
    command: str | None = None,
    progress: Report = silent,
) -> FinetuneResult | None:
    """Train what was set up, and write the file, unless an earlier run has done so."""
    group = setup.group
    done = files.done(key_of(setup.header)) if group.is_leader else None
    if group.told(done is not None):
        return None if done is None else _result(setup.network, done, complete_before=True)
    run = setup.run(compiled, loaders)
    callbacks = _reporting(setup, run, files.resume, progress)
    try:
        with train_to_end(setup, run, files, callbacks) as outcome:
            if not group.is_leader:
                return None
            network = setup.trained(outcome.model, outcome.header, outcome.reached)
            files.finish(_with_command(network, command))
    except KeyboardInterrupt:
        epochs = f"{run.epoch} of {setup.settings.epochs} epochs"
        raise KeyboardInterrupt(f"interrupted after {epochs}") from None
    return _result(network, network.notes["training"])


def _recalibrate(setup: TrainingSetup, files: Files, command: str | None) -> FinetuneResult | None:
    """Re-estimate BatchNorm statistics instead of training, and write the file."""
    group, data, run = setup.group, setup.data, setup.run()
    if not has_statistics(run.model):
        raise SettingError("--bn-recalibrate: this network has no BatchNorm layers")
    started = time.perf_counter()
    header = {**setup.header, "before": run.measure(data.validation).line()}
    refresh(run.model, data, group.device, setup.settings.seed)
    reached = {
        "epochs": 0,
        "best_epoch": 0,
        "validation": run.measure(data.validation).line(),
        "test": None if data.test is None else run.measure(data.test).line(),
        "seconds": round(time.perf_counter() - started, 1),
    }
    if not group.is_leader:
        return None
    network = setup.trained(run.model, header, reached)
    with recorded(files, header, {}):
        files.finish(_with_command(network, command))
    return _result(network, network.notes["training"])


def _with_command(network: Network, command: str | None) -> Network:
    """The network with one more command among those that led to it."""
    return (
        network if command is None else replace(network, notes=with_command(network.notes, command))
    )


def _result(network: Network, training: Line, complete_before: bool = False) -> FinetuneResult:
    """The notes of a training, by name."""
    names = ("before", "validation", "test", "epochs", "best_epoch", "seconds", "settings")
    numbers = {name: training.get(name) for name in names}
    return FinetuneResult(network, **numbers, complete_before=complete_before)  # type: ignore[arg-type]


def _reporting(setup: TrainingSetup, run: Run, resume: bool, progress: Report) -> TrainingCallbacks:
    """Callbacks that turn what happens in a training into events."""
    epochs = setup.settings.epochs
    total = epochs * run.steps

    def started(before: Line) -> None:
        for text in _opening_lines(setup, run, before, resume):
            progress(Message(text))

    def step(state: StepProgress) -> None:
        done = (state.epoch - 1) * state.steps + state.step
        train = [] if state.accuracy is None else [f"train {state.accuracy:.2%}"]
        facts = [f"loss {state.loss:.4f}", *train, f"{state.images_per_second:.0f} images/s"]
        title = f"epoch {state.epoch}/{epochs}"
        progress(Progress(done, total, title, (*facts, *_best(run))))

    def epoch(line: Line) -> None:
        facts = [
            f"loss {line['train_loss']:.4f}",
            f"{_measured_on(run.data)} {shown(setup.task, line['accuracy'])}",
            f"{line['images_per_second']:.0f} images/s",
            *_best(run),
        ]
        title = f"epoch {line['epoch']}/{epochs}"
        progress(Progress(line["epoch"] * run.steps, total, title, tuple(facts), milestone=True))

    return TrainingCallbacks(started, step, epoch)


def _measured_on(data: Data) -> str:
    """The images that an epoch is measured on."""
    return "validation" if data.held_out else f"{len(data.validation)} of them"


def _best(run: Run) -> list[str]:
    """`best 91.20% (#3)`, once there is one and if images are held out."""
    best = run.best_so_far
    if not best["best_epoch"] or not run.data.held_out:
        return []
    return [f"best {shown(run.task, best['best_accuracy'])} (#{best['best_epoch']:.0f})"]


def _opening_lines(setup: TrainingSetup, run: Run, before: Line | None, resume: bool) -> list[str]:
    """Lines to report before training: what is trained and how, and likely mistakes."""
    settings, data, group = setup.settings, setup.data, setup.group
    images = f"{len(data.train)} training and {len(data.validation)} validation images"
    if not data.held_out:
        images = (
            f"all {len(data.train)} training images, measured on {len(data.validation)} of them"
        )
    lines = [
        f"{setup.network.arch} on {images}, preprocessed as {data.feed}",
        *described(data, training=True),
        *doubts(data),
    ]
    if before is not None:
        kind = "accuracy" if setup.task is CLASSIFICATION else "score"
        reached = shown(setup.task, before["accuracy"])
        lines.append(f"validation {kind} before training: {reached}")
    if group.size > 1:
        lines.append(
            f"{group.size} processes with {settings.batch_size // group.size} images per batch each"
        )
    if resume:
        resumed = f"resuming after {run.epoch} of {settings.epochs} epochs"
        lines.append(resumed if run.epoch else "nothing to resume: starting from the beginning")
    return lines
