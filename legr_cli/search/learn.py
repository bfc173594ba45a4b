"""`legr_cli.learn`: a network and images → a ranking."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from legr_cli.arguments import as_shares, check_instance
from legr_cli.files import check_out, out_or_temporary, staged
from legr_cli.journal import Line, journal, read_header
from legr_cli.models.network import Network, as_network, in_single_precision
from legr_cli.progress import Message, Report, Status, interruptible, reporting, silent
from legr_cli.pruning import Analysis, analyze
from legr_cli.ranking import Ranking, write_ranking
from legr_cli.search.fitness import DEFAULT_FITNESS, with_steps
from legr_cli.search.history import HISTORY, history_of
from legr_cli.search.measured import with_metric
from legr_cli.search.planning import planned_search, with_overrides
from legr_cli.search.reporting import opening_messages, progress_callback
from legr_cli.search.setup import (
    SearchSetup,
    can_repair,
    check_names,
    check_settings,
)
from legr_cli.search.workers import dask_client
from legr_cli.settings import Pictures, Search, given
from legr_cli.training.devices import amp_helps, choose
from legr_cli.training.inputs import Images, as_images, check_outputs, images_for
from legr_cli.training.memory_format import in_memory_format
from legr_cli.training.scores import Score, figures_in
from legr_cli.training.tasks import BatchFunction, Task, task_for


@dataclass(frozen=True)
class CandidateScore:
    """The scores of a candidate."""

    figures: dict[str, float]  # by name, such as accuracy, the one to show first
    loss: float | None  # None: NaN or infinite
    divergence: float | None  # None: candidates were not compared with the dense network

    @classmethod
    def from_line(cls, line: Line) -> "CandidateScore":
        """The scores in a candidate's journal line."""
        return cls(figures_in(line), line["loss"], line.get("divergence"))


@dataclass(frozen=True)
class LearnResult:
    """A learned ranking, and a summary of the search."""

    ranking: Ranking
    settings: Search
    dense: Score  # of the dense network
    identity: CandidateScore | None  # α = 1, κ = 0; None if it was not the first candidate
    best: CandidateScore
    candidates: int  # number of candidates that were evaluated
    cached: int  # of them, those that keep the same units as an earlier one
    rejected: int  # of them, those that were not measured at every share
    seconds: float  # spent on candidates, summed over all workers


def learn(
    model: nn.Module,
    data: Any,
    *,
    flops: float | Sequence[float] | None = None,
    fitness: str | None = None,
    candidates: int | None = None,
    minutes: float | None = None,
    metric: str | None = None,
    explorer: str | None = None,
    seed: int | None = None,
    settings: Search | None = None,
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
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: Report | None = None,
) -> Ranking:
    """Learn a global filter ranking by a search for the α and κ of each layer.

    Args:
        model: The dense network; it is not changed.
        data: A SPEC such as `"cifar10:DIR"`, `"pairs:DIR"` (label pictures) or `"images:DIR"` (no
            labels), a DataLoader, a pair of tensors, a tensor of images, or an iterable of batches,
            with or without labels. A tenth is held out to score candidates on. Without labels,
            candidates are scored by how close their outputs are to the dense network's.
        flops: Share (or shares) of the FLOPs at which candidates are compared; 0.2, 0.4 and 0.8 by
            default, and 0.2 with another fitness than `"repair"`.
        fitness: How to adapt a candidate before it is scored: `"repair"` (the default, if any layer
            can be repaired), `"finetune"`, `"bn"` or `"none"`. `"repair"` ranks by how close the
            outputs are to the dense ones, and needs no labels.
        candidates: Number of candidates to evaluate; 100 by default, 400 with another fitness.
        minutes: Evaluate as many candidates as fit into this time, instead of `candidates`.
        metric: Importance metric that α scales and κ shifts: `"reconstruction"` (the default with
            repair), `"squared-norm"` (otherwise; the paper's), `"folded-norm"` or `"taylor"`.
        explorer: How candidates are proposed: `"surrogate"` (the default with repair),
            `"evolution"` (otherwise; the paper's), `"cmaes"` or `"random"`.
        seed: Random seed; also selects the held-out images.
        settings: All settings; the arguments above override them.
        loss: `loss(outputs, targets)`, the mean over a batch; cross entropy by default.
        score: `score(outputs, targets)`, the mean over a batch, higher is better; accuracy by
            default, or the negative loss if you pass only `loss`.
        outputs: What outputs of images × numbers are, where they are compared with another
            network's: `"classes"` for class scores, `"values"` for numbers such as angles. Defaults
            to what the network's card records, or else to `"classes"`.
        validation: Your own held-out data, instead of a tenth of `data`.
        input_shape: Shape of one image; needed for a SPEC and a module that is not from legr.
        arch: `"module:factory"` of your own network; only needed for several workers.
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
        out: `.json` file to write; an interrupted search can only be resumed with it.
        resume: Resume the interrupted search of `out`; the result matches an uninterrupted one.
        force: Overwrite `out`.
        progress: Called with progress events, for example `print`.

    Returns:
        The ranking, for `legr_cli.prune`; `ranking.notes` records how it was learned.

    Raises:
        BudgetError: A FLOPs target cannot be reached.
        DataError: The data is empty, has labels out of range or does not match the network.
        ModelError: The network cannot be traced, or fails on the images.
        SettingError: An argument is out of range, or arguments contradict each other.
        SearchError: The search cannot be resumed, or lost its workers.
        OutputError: `out` exists or cannot be written.

    Example:
        >>> ranking = legr_cli.learn(dense, loader, flops=0.3, fitness="bn", candidates=100)
    """
    targets = None if flops is None else as_shares(flops, "flops")
    check_instance(settings, Search, "settings")
    with out_or_temporary(out, "ranking.json", resume, force) as path:
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
        network = as_network(model, input_shape or images.shape, arch)
        task = task_for(loss, score, images.task, outputs or network.outputs)
        overrides = given(
            flops=targets,
            candidates=candidates,
            minutes=minutes,
            metric=metric,
            explorer=explorer,
            seed=seed,
        )
        if settings is None:
            planned = planned_search(task, fitness, **overrides)
        else:
            planned = [with_overrides(settings, {**overrides, **given(fitness=fitness)})]
        return learn_network(
            network.copied,
            images,
            planned,
            path,
            resume=resume,
            force=force,
            task=task,
            device=device,
            progress=reporting(progress),
        ).ranking


def learn_network(
    open_network: Callable[[], Network],
    images: Images,
    planned: Sequence[Search],
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    task: Task | None = None,
    device: str = "auto",
    cluster: str | None = None,
    all_workers: bool = False,
    command: str | None = None,
    progress: Report = silent,
) -> LearnResult:
    """Search, and write the ranking and its history.

    `open_network` is called once `out` has been checked. `planned` are the settings and, if there
    are two, those to use if no layer of the network can be repaired. `cluster` is the address of a
    Dask scheduler; `all_workers` uses all of its workers, whatever their number in the settings;
    `task` is what the data implies unless given.
    """
    task = task or images.task
    check_names(planned[0])
    previous = check_history(out, resume, force)
    with contextlib.ExitStack() as stack:
        client = None if cluster is None else stack.enter_context(dask_client(cluster))
        if client is not None and all_workers:
            count = _cluster_size(client, previous)
            planned = [replace(settings, workers=count) for settings in planned]
        progress(Status("loading the network"))
        analysis, settings = _analyzed(open_network(), planned, progress)
        if settings.amp and client is None:
            settings = replace(settings, amp=amp_helps(choose(device), progress))
        setup = _search_setup(analysis, images, settings, task, device, previous, progress)
        setup = setup.with_sensitivities(
            previous, lambda: progress(Status("measuring the sensitivity of each layer"))
        )
        progress(Status("measuring the dense network"))
        dense = previous["dense"] if previous and "dense" in previous else None
        header = {**setup.header, "dense": dense or setup.score_dense(client is not None).line()}
        history = history_of(out)
        book = stack.enter_context(journal(history, HISTORY, header, resume, force))
        for text in opening_messages(setup, header["dense"], len(book.lines), resume):
            progress(Message(text))
        with interruptible(lambda: f"{len(book.lines)} candidates"):
            result = setup.run(
                book,
                progress_callback(setup, progress),
                lambda text: progress(Message(text)),
                client,
            )
    lines = book.lines.values()
    seconds = round(sum(line.get("seconds", 0.0) for line in lines), 1)
    ranking = setup.ranking(result, header["dense"], history.name)
    notes = {**ranking.notes, **given(command=command), "seconds": seconds}
    ranking = replace(ranking, notes=notes)
    with staged() as files:
        write_ranking(ranking, files.file(out))
    return LearnResult(
        ranking,
        settings,
        Score.from_line(notes["dense"]),
        CandidateScore.from_line(notes["identity"]) if "identity" in notes else None,
        CandidateScore.from_line(notes["best"]),
        len(lines),
        result.cached,
        sum("measured" in line for line in lines),
        seconds,
    )


def check_history(out: Path, resume: bool, force: bool) -> Line | None:
    """Check `out` before any work is done; return the header of the search to resume, if any."""
    history = history_of(out)
    beside = {"a ranking": out, "the history of a search": history}
    check_out(out, ".json", beside, resume, force)
    return read_header(history, HISTORY) if resume else None


def _cluster_size(client: Any, previous: Line | None) -> int:
    """Number of workers in a cluster; a resumed search keeps its original number."""
    if previous is not None:
        return int(previous["settings"]["workers"])
    return max(1, sum(client.nthreads().values()))


def _analyzed(
    network: Network, planned: Sequence[Search], progress: Report
) -> tuple[Analysis, Search]:
    """Analyze the network, and choose the settings that suit it."""
    progress(Status("grouping channels into units"))
    network = replace(network, model=in_single_precision(network.model))  # images are float32
    analysis, settings = analyze(network), planned[0]
    if settings.fitness == DEFAULT_FITNESS and len(planned) > 1 and not can_repair(analysis):
        settings = planned[1]
        text = f"no layer of this network can be repaired: using --fitness {settings.fitness}"
        progress(Message(text))
    settings = with_steps(settings)
    check_settings(analysis, settings)
    return analysis, settings


def _search_setup(
    analysis: Analysis,
    images: Images,
    settings: Search,
    task: Task,
    device: str,
    previous: Line | None,
    progress: Report,
) -> SearchSetup:
    """Load the images, check that they match, and measure the filters."""
    progress(Status("loading the images"))
    model = analysis.network.model
    data = in_memory_format(model, images_for(analysis.network, images, settings.seed, task))
    check_outputs(model, data, task)
    progress(Status("measuring the filters"))
    analysis = with_metric(analysis, data, settings, previous)
    return SearchSetup(analysis, data, settings, device, task=task)
