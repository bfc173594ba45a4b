"""Evaluate a candidate: prune the network, adapt it briefly, and score it on validation images.

All candidates see the same batches, so a candidate's fitness depends only on the channels it keeps.
"""

import itertools
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from legr_cli.channels import Units, apply, couple
from legr_cli.channels.part import part_or_whole
from legr_cli.channels.units import Kept
from legr_cli.data.batches import Batch, Serving, endless, in_order, shuffled
from legr_cli.data.dataset import Part
from legr_cli.data.feed import Feed
from legr_cli.errors import LegrError, SearchError
from legr_cli.models.network import Network, open_network, own_copy, write_network
from legr_cli.repairs.closeness import Closeness, closeness_sums
from legr_cli.search.fitness import Cut, adaptation
from legr_cli.search.objectives import excess
from legr_cli.search.reference import DenseOutputs, Reference
from legr_cli.settings import Search
from legr_cli.training.devices import choose, half_precision, seeded
from legr_cli.training.loop import evaluate
from legr_cli.training.scores import Score
from legr_cli.training.tasks import Task, with_targets
from legr_cli.version import __version__

Plans = tuple[Kept, ...]  # the units that a candidate keeps, at each of the FLOPs targets


@dataclass(frozen=True)
class Protocol:
    """How all candidates of a search are adapted and scored."""

    train: Part
    validation: Part
    feed: Feed
    settings: Search
    device: str
    task: Task

    def self_contained(self) -> "Protocol":
        """The same protocol for other machines; see `Part.self_contained`."""
        train, validation = self.train.self_contained(), self.validation.self_contained()
        return replace(self, train=train, validation=validation)


@dataclass(frozen=True)
class Job:
    """Everything a worker needs for a search; sent to each worker once."""

    key: str  # identifies the job
    network: bytes  # contents of a legr .safetensors file
    arch: str | None  # the user's factory, if the network comes from one
    protocol: Protocol
    legr: str = __version__

    def self_contained(self) -> "Job":
        """The same job for other machines; see `Part.self_contained`."""
        return replace(self, protocol=self.protocol.self_contained())


@dataclass(frozen=True)
class Outcome:
    """The scores of a candidate at one FLOPs target, and the time that it took."""

    score: Score
    seconds: float  # total
    adapt_seconds: float
    measure_seconds: float
    divergence: float | None = None  # from the dense network's outputs, if candidates rank by it


def to_bytes(network: Network) -> bytes:
    """The contents of the file that `write_network` writes."""
    with tempfile.TemporaryDirectory(prefix="legr-") as folder:
        path = Path(folder, "network.safetensors")
        write_network(network, path)
        return path.read_bytes()


def _open_units(job: Job) -> Units:
    """Open a job's network in a worker."""
    if job.legr != __version__:
        raise SearchError(
            f"a worker has legr {__version__}, but the search was started by legr {job.legr}: "
            "install the same version everywhere"
        )
    with tempfile.TemporaryDirectory(prefix="legr-") as folder:
        path = Path(folder, "network.safetensors")
        path.write_bytes(job.network)
        try:
            network = open_network(str(path), job.arch)
        except LegrError as error:
            reason = str(error).replace(str(path), "the network")
            raise SearchError(f"in a worker: {reason}") from error
    network.model.float()  # images are float32
    return couple(network.model, network.input_shape, network.module)


class CandidateEvaluator:
    """Evaluates the candidates of one network on one device."""

    def __init__(self, units: Units, protocol: Protocol, worker: int = 0) -> None:
        self.units, self.protocol = units, protocol
        self.device = choose(protocol.device, worker)
        if protocol.settings.amp and half_precision(self.device) is None:
            raise SearchError(
                f"mixed precision is slower on a worker's {self.device.type}: start without --amp"
            )
        if self.device.type == "cuda":
            torch.backends.cudnn.deterministic = True
        self.reference: Reference | None = None
        self.dense_outputs: DenseOutputs | None = None
        by_divergence = adaptation(protocol.settings.fitness).ranks_by_divergence
        if by_divergence:
            images = (images for images, _ in self._batches(torch.device("cpu")))
            self.reference = Reference(units, images, protocol.settings.seed)
        if by_divergence or protocol.task.needs_reference:
            model = units.source.model
            on_device = model if self.device.type == "cpu" else own_copy(model).to(self.device)
            on_device = part_or_whole(on_device, self._part)
            self.dense_outputs = DenseOutputs(on_device, len(protocol.validation))

    def evaluate(self, plans: Plans, best: Sequence[float] | None = None) -> list[Outcome]:
        """Evaluate a candidate at every FLOPs target.

        It ends early where the divergences exceed those of the `best` candidate by too much.
        """
        outcomes, limit = list[Outcome](), self.protocol.settings.reject_above
        for kept in plans:
            outcomes.append(self._evaluate(kept))
            found = [o.divergence for o in outcomes if o.divergence is not None]
            if best is not None and limit and found and excess(found, best) > limit:
                break
        return outcomes

    @property
    def _part(self) -> str:
        """The part whose outputs are compared with the dense network's; empty: the whole."""
        return self.units.source.module if self.protocol.task.needs_reference else ""

    def _evaluate(self, kept: Kept) -> Outcome:
        """Prune, adapt and score one network."""
        if len(kept) != self.units.count:
            raise SearchError(
                f"a worker finds {self.units.count} units in the network, not {len(kept)}: install "
                "the same versions of torch and legr everywhere"
            )
        start = time.perf_counter()
        smaller = apply(self.units, kept)
        layout = self.protocol.feed.memory_format
        device = torch.device("cpu") if self.reference else self.device  # repair runs on the CPU
        smaller = smaller.to(device, memory_format=layout)  # type: ignore[call-overload]
        smaller = part_or_whole(smaller, self._part)
        pruned = time.perf_counter()
        with seeded(self.device, self.protocol.settings.seed):
            self._adapt(smaller, kept)
        smaller = smaller.to(self.device)
        adapted = time.perf_counter()
        score, divergence = self._score(smaller)
        end = time.perf_counter()
        seconds = end - start, adapted - pruned, end - adapted
        return Outcome(score, *seconds, divergence)

    def _adapt(self, model: torch.nn.Module, kept: Kept) -> None:
        """Run τ̂ adaptation steps, as the fitness prescribes."""
        protocol, settings = self.protocol, self.protocol.settings
        fitness = adaptation(settings.fitness)
        if fitness.adapt is None or not settings.steps:
            return
        half = half_precision(self.device) if settings.amp else None
        dense = self.dense_outputs
        batches = with_targets(
            protocol.task, self._batches(self.device), None if dense is None else dense.of
        )
        fitness.adapt(Cut(model, kept, batches, settings, protocol.task, half, self.reference))

    def _batches(self, device: torch.device) -> Iterator[Batch]:
        """The batches that every candidate is adapted with."""
        protocol, settings = self.protocol, self.protocol.settings
        generator = torch.Generator().manual_seed(settings.seed)

        def epoch() -> Iterator[Batch]:
            serving = Serving(protocol.feed, settings.batch_size, device)
            augment = adaptation(settings.fitness).trains
            return shuffled(protocol.train, serving, generator, augment)

        return itertools.islice(endless(epoch), settings.steps)

    def _score(self, model: torch.nn.Module) -> tuple[Score, float | None]:
        """Score on the validation images, and compare with the dense network if necessary."""
        protocol, dense = self.protocol, self.dense_outputs
        serving = Serving(protocol.feed, max(protocol.settings.batch_size, 250), self.device)
        batches = in_order(protocol.validation, serving)
        if dense is None:
            return evaluate(model, batches, protocol.task), None
        task, closeness, wanted = protocol.task, list[torch.Tensor](), list[Any]()
        by_divergence = adaptation(protocol.settings.fitness).ranks_by_divergence

        def watched() -> Iterator[Batch]:
            for number, (images, targets) in enumerate(batches):
                wanted[:] = [dense.at(number, images)]
                yield images, wanted[0] if task.needs_reference else targets

        def sums(outputs: Any, targets: Any) -> torch.Tensor:
            if by_divergence:
                closeness.append(closeness_sums(outputs, wanted[0], task.values))
            return task.sums(outputs, targets)

        score = evaluate(model, watched(), replace(task, sums=sums))
        if not by_divergence:
            return score, None
        return score, Closeness(torch.stack(closeness).sum(0).tolist()).divergence


_evaluators: dict[str, CandidateEvaluator] = {}  # in a worker: the current job's, by its key
_lock = threading.Lock()


def evaluate_candidate(
    job: Job, plans: Plans, best: Sequence[float] | None = None, worker: int = 0
) -> list[Outcome]:
    """Evaluate a candidate in a worker; the network is opened the first time."""
    with _lock:
        if job.key not in _evaluators:
            _evaluators.clear()
            _evaluators[job.key] = CandidateEvaluator(_open_units(job), job.protocol, worker)
        evaluator = _evaluators[job.key]
    return evaluator.evaluate(plans, best)
