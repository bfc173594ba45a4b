"""`legr_cli.finetune`: a network and images → a trained network."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from torch import nn

from legr_cli.arguments import check_instance
from legr_cli.errors import SettingError
from legr_cli.files import out_or_temporary
from legr_cli.journal import Line
from legr_cli.models.card import with_command
from legr_cli.models.network import Network, as_network
from legr_cli.progress import Report, Status, interruptible, reporting, silent
from legr_cli.settings import Pictures, Training, given
from legr_cli.training.devices import amp_helps
from legr_cli.training.evaluate import recalibrate_on
from legr_cli.training.inputs import (
    Images,
    NetworkSource,
    as_images,
    check_teacher,
    open_network_and_data,
    open_teacher,
)
from legr_cli.training.loop import has_running_stats
from legr_cli.training.process_group import process_group
from legr_cli.training.recipes import default_recipe, settings_of
from legr_cli.training.reporting import training_callbacks
from legr_cli.training.result import train_to_end
from legr_cli.training.resume import RunFiles, open_record, run_key
from legr_cli.training.scores import Score
from legr_cli.training.setup import TrainingSetup, training_setup
from legr_cli.training.tasks import BatchFunction, Task, task_for

RECALIBRATION = (
    "bn-recalibrate"  # stored as the recipe if only BatchNorm statistics were re-estimated
)


@dataclass(frozen=True)
class FinetuneResult:
    """A trained network and its scores."""

    network: Network
    before: Score  # on the validation images
    validation: Score | None  # None if no images were held out
    test: Score | None  # None if the data has no test images
    epochs: int
    best_epoch: int
    seconds: float
    settings: Line
    complete_before: bool = False  # whether an earlier run had completed this training


def finetune(
    model: nn.Module,
    data: Any,
    *,
    recipe: str | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    settings: Training | None = None,
    teacher: nn.Module | None = None,
    loss: BatchFunction | None = None,
    score: BatchFunction | None = None,
    outputs: str | None = None,
    validation: Any = None,
    input_shape: Sequence[int] | None = None,
    normalize: str | None = None,
    resize: str | None = None,
    crop: float | None = None,
    transform: str | None = None,
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
    """Train a copy of a network; keep the weights of the epoch with the best validation score.

    On a CPU, the same seed gives the same weights.

    Args:
        model: The network to train; it is not changed.
        data: A SPEC such as `"cifar10:DIR"`, `"pairs:DIR"` (label pictures) or `"images:DIR"` (no
            labels), a DataLoader, a pair of tensors, or an iterable of `(images, targets)`, or of
            images alone, which need a `teacher`. From a DataLoader, legr takes the dataset, the
            `collate_fn` and the number of workers; it draws the batches itself, so that runs can be
            resumed.
        recipe: Name of a recipe (`legr finetune --recipes` lists them). None is `"match"` without
            labels, `"repaired"` for a repaired network with a teacher, and `"quick"` otherwise.
        epochs: Number of epochs, instead of the recipe's.
        lr: Peak learning rate, instead of the recipe's.
        batch_size: Images per batch, instead of the recipe's.
        seed: Random seed; also selects the held-out images.
        settings: All settings, instead of `recipe`; the arguments above override them.
        teacher: A network to distill from, such as the dense one. Without labels, its outputs are
            all that is trained for.
        loss: `loss(outputs, targets)`, the mean over a batch; cross entropy by default.
        score: `score(outputs, targets)`, the mean over a batch, higher is better; accuracy by
            default, or the negative loss if you pass only `loss`.
        outputs: What outputs of images × numbers are, where they are compared with another
            network's: `"classes"` for class scores, `"values"` for numbers such as angles. Defaults
            to what the network's card records, or else to `"classes"`.
        validation: Your own held-out data, instead of a tenth of `data`.
        input_shape: Shape of one image; needed for a SPEC and a module that is not from legr.
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
        out: `.safetensors` file to write; an interrupted run can only be resumed with it.
        resume: Resume the interrupted run of `out`; the result matches an uninterrupted one.
        force: Overwrite `out`.
        progress: Called with progress events, for example `print`.

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
    check_instance(settings, Training, "settings")
    with out_or_temporary(out, "network.safetensors", resume, force) as path:
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
        network = as_network(model, input_shape or images.shape)
        overrides = given(epochs=epochs, lr=lr, batch_size=batch_size, seed=seed)
        if settings is None:
            usual = default_recipe(network.notes, teacher is not None, images.labelled)
            planned = settings_of(recipe or usual, **overrides)
        else:
            planned = replace(settings, **overrides)
        result = finetune_network(
            NetworkSource(network.copied()),
            images,
            planned,
            RunFiles(path, resume, force),
            teacher=None if teacher is None else as_network(teacher, network.input_shape).copied(),
            task=task_for(loss, score, images.task, outputs or network.outputs),
            device=device,
            progress=reporting(progress),
        )
    assert result is not None  # a single process is its own leader
    return result.network.carried().eval()


def finetune_network(
    source: NetworkSource,
    images: Images,
    settings: Training,
    files: RunFiles,
    *,
    teacher: "Network | tuple[str, str | None] | None" = None,
    task: Task | None = None,
    device: str = "auto",
    compiled: bool = False,
    loaders: int | None = None,
    recalibrate_only: bool = False,
    command: str | None = None,
    progress: Report = silent,
) -> FinetuneResult | None:
    """Load the network, the images and the teacher, train, and write the result.

    `teacher` is a network, or a checkpoint and its architecture; `task` is what the data implies
    unless given. Returns None in all processes but
    the leader.
    """
    task = task or images.task
    if task.needs_reference and teacher is None:
        raise SettingError(
            "these images have no labels: pass --teacher DENSE to train towards its outputs"
        )
    with process_group(device) as group:
        report = progress if group.is_leader else silent
        if group.is_leader:
            files.check()
        settings = replace(settings, amp=settings.amp and amp_helps(group.device, report))
        report(Status("loading the network and the images"))
        network, data = open_network_and_data(source, images, settings.seed, group, task)
        if isinstance(teacher, tuple):
            teacher = open_teacher(*teacher, network, data, images, task)
        elif teacher is not None:
            check_teacher(teacher, data, images, task)
        stored = {"recipe": RECALIBRATION, "seed": settings.seed} if recalibrate_only else None
        setup = training_setup(network, data, settings, group, teacher, task, stored)
        if recalibrate_only:
            return _recalibrate(setup, files, command)
        return train_setup(setup, files, compiled, loaders, command, report)


def train_setup(
    setup: TrainingSetup,
    files: RunFiles,
    compiled: bool = False,
    loaders: int | None = None,
    command: str | None = None,
    progress: Report = silent,
) -> FinetuneResult | None:
    """Train and write the network, unless an earlier run has already done so."""
    group = setup.group
    completed = files.completed(run_key(setup.header)) if group.is_leader else None
    if group.broadcast_int(completed is not None):
        return None if completed is None else _result(setup.network, completed, True)
    run = setup.run(compiled, loaders)
    callbacks = training_callbacks(setup, run, files.resume, progress)
    with (
        interruptible(lambda: f"{run.epoch} of {setup.settings.epochs} epochs"),
        train_to_end(setup, run, files, callbacks) as outcome,
    ):
        if not group.is_leader:
            return None
        network = setup.trained_network(outcome.model, outcome.header, outcome.results)
        files.finish(_with_command(network, command))
    return _result(network, network.notes["training"])


def _recalibrate(
    setup: TrainingSetup, files: RunFiles, command: str | None
) -> FinetuneResult | None:
    """Re-estimate the BatchNorm statistics instead of training, and write the network."""
    group, data, run = setup.group, setup.data, setup.run()
    if not has_running_stats(run.model):
        raise SettingError("--bn-recalibrate: this network has no BatchNorm layers")
    started = time.perf_counter()
    header = {**setup.header, "before": run.measure(data.validation).line()}
    recalibrate_on(data, run.model, group.device, setup.settings.seed)
    results = {
        "epochs": 0,
        "best_epoch": 0,
        "validation": run.measure(data.validation).line(),
        "test": None if data.test is None else run.measure(data.test).line(),
        "seconds": round(time.perf_counter() - started, 1),
    }
    if not group.is_leader:
        return None
    network = setup.trained_network(run.model, header, results)
    with open_record(files, header, {}):
        files.finish(_with_command(network, command))
    return _result(network, network.notes["training"])


def _with_command(network: Network, command: str | None) -> Network:
    """Append a command to the network's provenance."""
    return (
        network if command is None else replace(network, notes=with_command(network.notes, command))
    )


def _result(network: Network, training: Line, complete_before: bool = False) -> FinetuneResult:
    """Build the result from the training record in the network's notes."""
    validation, test = (training.get(name) for name in ("validation", "test"))
    return FinetuneResult(
        network,
        before=Score.from_line(training["before"]),
        validation=validation and Score.from_line(validation),
        test=test and Score.from_line(test),
        epochs=training["epochs"],
        best_epoch=training["best_epoch"],
        seconds=training["seconds"],
        settings=training["settings"],
        complete_before=complete_before,
    )
