"""`legr_cli.learn`: a network and images → a ranking."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from legr_cli.data.dataset import described, doubts
from legr_cli.errors import OutputError
from legr_cli.files import check_out, staged
from legr_cli.journal import Line, journal, read_header
from legr_cli.models.network import Network, as_network, in_single_precision, own_copy
from legr_cli.progress import Message, Progress, Report, Status, silent
from legr_cli.pruning import analyze
from legr_cli.ranking import Ranking, write_ranking
from legr_cli.search.fitness import with_steps
from legr_cli.search.history import HISTORY, history_of
from legr_cli.search.run import SearchProgress, SearchResult, search
from legr_cli.search.setup import SearchSetup, check_reach
from legr_cli.search.workers import connected
from legr_cli.settings import Pictures, Search
from legr_cli.targets import percents
from legr_cli.training.devices import choose
from legr_cli.training.finetune import amp_helps
from legr_cli.training.inputs import Images, as_images, check_outputs, images_for, in_memory_format
from legr_cli.training.scores import CLASSIFICATION, OwnFunction, Task, shown, task_for


@dataclass(frozen=True)
class LearnResult:
    """A learned ranking, and how the search went."""

    ranking: Ranking
    settings: Search
    dense: Line  # accuracy, loss and images: of the dense network
    identity: Line | None  # … of α = 1, κ = 0 at the shares that were compared
    best: Line  # … of the best candidate
    cached: int  # candidates that equal an earlier one
    seconds: float  # of work, summed over all workers


def learn(
    model: nn.Module,
    data: Any,
    *,
    flops: float | Sequence[float] | None = None,
    fitness: str | None = None,
    candidates: int | None = None,
    seed: int | None = None,
    settings: Search | None = None,
    loss: OwnFunction | None = None,
    score: OwnFunction | None = None,
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
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    progress: Report | None = None,
) -> Ranking:
    """Learn a global filter ranking by evolutionary search (paper, Algorithm 1).

    Args:
        model: The dense network; it is not changed.
        data: A SPEC such as `"cifar10:DIR"`, a DataLoader, a pair of tensors, or an iterable of
            `(images, targets)`. A tenth is held out to measure candidates on.
        flops: Share (or shares) of the FLOPs at which candidates are compared; 0.2 by default.
        fitness: How to adapt a candidate before it is measured: `"finetune"` (the default),
            `"bn"` or `"none"`.
        candidates: Number of candidates to evaluate; 400 by default.
        seed: Random seed; also selects the held-out images.
        settings: Everything else, and defaults for the arguments above.
        loss: `loss(outputs, targets)`, the mean over a batch; cross entropy by default.
        score: `score(outputs, targets)`, the mean over a batch, higher is better; accuracy by
            default.
        validation: Held-out data of your own, instead of a tenth of `data`.
        input_shape: Shape of one image, for a module that does not come from legr and a SPEC.
        arch: `"module:factory"` of a network of your own; needed only for several workers.
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
        out: A `.json` file to write. With it, an interrupted search can be resumed.
        resume: Resume the search that `out` records; the result matches an uninterrupted one.
        force: Overwrite `out`.
        progress: Called with events while searching; `print` will do.

    Returns:
        The ranking, for `legr_cli.prune`; `ranking.notes` records how it was learned.

    Raises:
        BudgetError: A share is out of reach.
        DataError: The data is empty, has labels out of range or does not fit the network.
        ModelError: The network cannot be taken apart, or fails on the images.
        SettingError: An argument is out of range, or arguments contradict each other.
        SearchError: The search cannot be resumed, or lost its workers.
        OutputError: `out` exists or cannot be written.

    Example:
        >>> ranking = legr_cli.learn(dense, loader, flops=0.3, fitness="bn", candidates=100)
    """
    shares = (flops,) if isinstance(flops, int | float) else flops and tuple(flops)
    given = {"flops": shares, "fitness": fitness, "candidates": candidates, "seed": seed}
    chosen = {name: value for name, value in given.items() if value is not None}
    planned = _fitting(settings or Search(), chosen)
    if out is None and (resume or force):
        raise OutputError("resume and force need out, the file that records the search")
    images = as_images(
        data,
        validation,
        normalize=normalize,
        download=download,
        pictures=Pictures(resize=resize, crop=crop, random_crop=random_crop, flip=flip),
        ignore_class_names=ignore_class_names,
    )
    network = as_network(model, input_shape or images.shape, arch)
    with _output(out) as path:
        return learn_network(
            lambda: replace(network, model=own_copy(network.model)),
            images,
            planned,
            path,
            resume=resume,
            force=force,
            task=task_for(loss, score),
            device=device,
            progress=progress or silent,
        ).ranking


def _fitting(settings: Search, chosen: dict[str, Any]) -> Search:
    """The settings with these values; a population larger than the search shrinks with it."""
    candidates = chosen.get("candidates", settings.candidates)
    population = min(settings.population, max(1, candidates))
    fit = {"population": population, "sample": min(settings.sample, population)}
    return replace(settings, **{**fit, **chosen})


@contextlib.contextmanager
def _output(out: str | PathLike[str] | None) -> Iterator[Path]:
    """The file to write; without one, a temporary file that records the search while it lasts."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory(prefix="legr-") as folder:
        yield Path(folder) / "ranking.json"


def learn_network(
    opened: Callable[[], Network],
    images: Images,
    settings: Search,
    out: Path,
    *,
    resume: bool = False,
    force: bool = False,
    task: Task = CLASSIFICATION,
    device: str = "auto",
    cluster: str | None = None,
    all_workers: bool = False,
    command: str | None = None,
    progress: Report = silent,
) -> LearnResult:
    """Search, and write the ranking and its history.

    `opened` opens the network, once the output is known to be free. `cluster` is the address of a
    Dask scheduler; `all_workers` uses all of its workers instead of as many as the settings say.
    """
    settings = with_steps(settings)
    previous = check_history(out, resume, force)
    with contextlib.ExitStack() as stack:
        client = None if cluster is None else stack.enter_context(connected(cluster))
        if client is not None and all_workers:
            settings = replace(settings, workers=_cluster_size(client, previous))
        if settings.amp and client is None:
            settings = replace(settings, amp=amp_helps(choose(device), progress))
        progress(Status("loading the network"))
        setup = _prepare(opened(), images, settings, task, device, progress)
        progress(Status("measuring the dense network"))
        dense = previous["dense"] if previous and "dense" in previous else None
        header = {**setup.header, "dense": dense or setup.dense(client is not None).line()}
        history = history_of(out)
        book = stack.enter_context(journal(history, HISTORY, header, resume, force))
        for text in _opening_lines(setup, header["dense"], len(book.lines), resume):
            progress(Message(text))
        pool = setup.pool(client)
        stack.callback(pool.shutdown)
        watch = _reporting(setup, progress)
        try:
            found = search(
                setup.analysis,
                settings,
                setup.strategy,
                pool,
                book,
                watch,
                lambda text: progress(Message(text)),
            )
        except KeyboardInterrupt:
            done = f"{len(book.lines)} of {settings.candidates} candidates"
            raise KeyboardInterrupt(f"interrupted after {done}") from None
    seconds = round(sum(line.get("seconds", 0.0) for line in book.lines.values()), 1)
    ranking = setup.ranking(found, header["dense"], history.name)
    ranking.notes.update({"command": command} if command else {}, seconds=seconds)
    with staged() as files:
        write_ranking(ranking, files.file(out))
    return _result(ranking, settings, found, seconds)


def check_history(out: Path, resume: bool, force: bool) -> Line | None:
    """Check `out` before any work is done; returns the header of the search to resume."""
    history = history_of(out)
    beside = {"a ranking": out, "the history of a search": history}
    check_out(out, ".json", beside, resume, force)
    return read_header(history, HISTORY) if resume else None


def _cluster_size(client: Any, previous: Line | None) -> int:
    """Number of workers in a cluster; a resumed search keeps the number it started with."""
    if previous is not None:
        return int(previous["settings"]["workers"])
    return max(1, sum(client.nthreads().values()))


def _prepare(
    network: Network,
    images: Images,
    settings: Search,
    task: Task,
    device: str,
    progress: Report,
) -> SearchSetup:
    """Take the network apart, and open the images."""
    progress(Status("grouping channels into units"))
    network = replace(network, model=in_single_precision(network.model))  # images are float32
    analysis = analyze(network)
    check_reach(analysis, settings)
    progress(Status("loading the images"))
    data = in_memory_format(network.model, images_for(network, images, settings.seed, task))
    check_outputs(network.model, data, task)
    return SearchSetup(analysis, data, settings, device, task=task)


def _result(ranking: Ranking, settings: Search, found: SearchResult, seconds: float) -> LearnResult:
    """The result, with what the ranking's notes record by name."""
    notes = ranking.notes
    scores = notes["dense"], notes.get("identity"), notes["best"]
    return LearnResult(ranking, settings, *scores, found.cached, seconds)


def _reporting(setup: SearchSetup, progress: Report) -> Callable[[SearchProgress], None]:
    """A callback that turns what happens in a search into events."""
    total, classes = setup.settings.candidates, len(setup.data.classes)

    def watch(state: SearchProgress) -> None:
        facts = [
            f"best {shown(setup.task, state.best['accuracy'])} (#{state.best['candidate'] + 1})",
            f"latest {shown(setup.task, state.latest['accuracy'])}",
        ]
        if state.cached:
            facts.append(f"{state.cached} repeats")
        title, ends = f"candidate {state.done}/{total}", state.done in (1, total)
        resumed = state.recorded
        progress(Progress(state.done, total, title, tuple(facts), ends, resumed))
        lowest = min(state.latest.get("each", [state.latest["accuracy"]]))
        if state.done == 1 and classes and lowest < 2 / classes:
            progress(
                Message(
                    "this is close to chance, so fitness says little: try a higher --flops, more "
                    "--steps or --fitness finetune"
                )
            )

    return watch


def _opening_lines(setup: SearchSetup, dense: Line, recorded: int, resume: bool) -> list[str]:
    """Lines to report before the search: what is searched, and likely mistakes."""
    total, classes = setup.settings.candidates, len(setup.data.classes)
    lines = [
        f"{setup.analysis.network.arch} on {setup.data.feed}: "
        f"{shown(setup.task, dense['accuracy'])} on {dense['images']} validation images, which "
        "legr never trains on",
        *described(setup.data, training=setup.settings.fitness == "finetune"),
        *doubts(setup.data),
    ]
    if classes and dense["accuracy"] < 1.5 / classes:
        lines.append(
            "this is no better than chance: are --data, --normalize, --input and the checkpoint "
            "right?"
        )
    if recorded == total:
        lines.append(f"all {total} candidates are in the history: nothing left to evaluate")
    elif resume:
        lines.append(
            f"resuming after {recorded} of {total} candidates"
            if recorded
            else "nothing to resume: starting from the beginning"
        )
    return [*lines, f"candidates are compared at {percents(setup.settings.flops)} of the FLOPs"]
