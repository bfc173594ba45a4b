"""Evaluate a candidate: prune the network, adapt it a little, measure it on held-out images.

Every candidate sees the same batches, so its fitness depends on which channels it keeps and on
nothing else.
"""

import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from legr_cli.channels import Units, apply, couple
from legr_cli.channels.units import Kept
from legr_cli.data.batches import Batch, Serving, endless, in_order, shuffled
from legr_cli.data.dataset import Part
from legr_cli.data.feed import Feed
from legr_cli.errors import LegrError, SearchError
from legr_cli.models.network import Network, open_network, write_network
from legr_cli.search.fitness import adaptation
from legr_cli.settings import Search
from legr_cli.training.devices import choose, half_precision, seeded
from legr_cli.training.loop import evaluate
from legr_cli.training.scores import Score, Task
from legr_cli.version import __version__

Cuts = tuple[Kept, ...]  # of a candidate: the units that it keeps at each share of the FLOPs


@dataclass(frozen=True)
class Protocol:
    """How every candidate of a search is adapted and measured."""

    train: Part
    validation: Part
    feed: Feed
    settings: Search
    device: str
    task: Task

    def carried(self) -> "Protocol":
        """The same protocol for another machine."""
        return replace(self, train=self.train.carried(), validation=self.validation.carried())


@dataclass(frozen=True)
class Job:
    """All that a worker process needs; it is sent once."""

    key: str  # tells one job from another
    network: bytes  # a .safetensors file as legr writes it
    arch: str | None  # the user's own factory, if it is one
    protocol: Protocol
    legr: str = __version__

    def carried(self) -> "Job":
        """The same job for another machine."""
        return replace(self, protocol=self.protocol.carried())


@dataclass(frozen=True)
class Outcome:
    """What a pruned network reached, and the seconds that it took."""

    accuracy: float
    loss: float
    seconds: float  # in all
    adapt_seconds: float
    measure_seconds: float


def packed(network: Network) -> bytes:
    """A network as the bytes of its file."""
    with tempfile.TemporaryDirectory(prefix="legr-") as folder:
        path = Path(folder, "network.safetensors")
        write_network(network, path)
        return path.read_bytes()


def _unpacked(job: Job) -> Units:
    """The units of a job's network, opened in a worker."""
    if job.legr != __version__:
        raise SearchError(
            f"a worker has legr {__version__}, this is {job.legr}: install the same version"
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
    return couple(network.model, network.input_shape)


class CandidateEvaluator:
    """A network taken apart, and the device on which its candidates are evaluated."""

    def __init__(self, units: Units, protocol: Protocol, worker: int = 0) -> None:
        self.units, self.protocol = units, protocol
        self.device = choose(protocol.device, worker)
        if protocol.settings.amp and half_precision(self.device) is None:
            raise SearchError(
                f"a worker has no mixed precision on its {self.device.type}: start without --amp"
            )
        if self.device.type == "cuda":
            torch.backends.cudnn.deterministic = True

    def evaluate(self, cuts: Cuts) -> list[Outcome]:
        """Evaluate a candidate at every share of the FLOPs."""
        return [self._outcome(kept) for kept in cuts]

    def _outcome(self, kept: Kept) -> Outcome:
        """Prune, adapt and measure."""
        if len(kept) != self.units.count:
            raise SearchError(
                f"a worker finds {self.units.count} units in the network, not {len(kept)}: install "
                "the same versions of torch and legr everywhere"
            )
        start = time.perf_counter()
        smaller = apply(self.units, kept)
        layout = self.protocol.feed.memory_format
        smaller = smaller.to(self.device, memory_format=layout)  # type: ignore[call-overload]
        pruned = time.perf_counter()
        with seeded(self.device, self.protocol.settings.seed):
            self._adapt(smaller)
        adapted = time.perf_counter()
        score = self._measure(smaller)
        end = time.perf_counter()
        return Outcome(score.accuracy, score.loss, end - start, adapted - pruned, end - adapted)

    def _adapt(self, model: torch.nn.Module) -> None:
        """τ̂ batches of what the fitness does."""
        protocol, settings = self.protocol, self.protocol.settings
        kind = adaptation(settings.fitness)
        if kind.adapt is None or not settings.steps:
            return
        generator = torch.Generator().manual_seed(settings.seed)

        def epoch() -> Iterator[Batch]:
            serving = Serving(protocol.feed, settings.batch_size, self.device)
            return shuffled(protocol.train, serving, generator, augment=kind.trains)

        few = itertools.islice(endless(epoch), settings.steps)
        half = half_precision(self.device) if settings.amp else None
        kind.adapt(model, few, settings, protocol.task, half)

    def _measure(self, model: torch.nn.Module) -> Score:
        """Score on the held-out images."""
        protocol = self.protocol
        serving = Serving(protocol.feed, max(protocol.settings.batch_size, 250), self.device)
        return evaluate(model, in_order(protocol.validation, serving), protocol.task)


_evaluators: dict[str, CandidateEvaluator] = {}  # of this worker: one job at a time
_opening = threading.Lock()


def evaluate_candidate(job: Job, cuts: Cuts, worker: int = 0) -> list[Outcome]:
    """Evaluate a candidate in a worker, which opens the job the first time."""
    with _opening:
        if job.key not in _evaluators:
            _evaluators.clear()
            _evaluators[job.key] = CandidateEvaluator(_unpacked(job), job.protocol, worker)
        evaluator = _evaluators[job.key]
    return evaluator.evaluate(cuts)
