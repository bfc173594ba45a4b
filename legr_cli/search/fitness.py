"""The fitness of a candidate: cut the network, adapt it a little, measure it on held-out images.

A `Job` is all that a worker needs; it is sent once. Every candidate sees the same batches, so a
fitness depends on which channels are kept and on nothing else.
"""

import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from legr_cli import __version__
from legr_cli.channels import apply, couple
from legr_cli.data.batches import Batch, Serving, endless, in_order, shuffled
from legr_cli.data.dataset import Feed, Part
from legr_cli.errors import LegrError, SearchError
from legr_cli.models.card import Channels
from legr_cli.models.kept import kept_units
from legr_cli.models.network import Network, open_network, write_network
from legr_cli.settings import Search
from legr_cli.training.devices import choose, half_precision, seeded
from legr_cli.training.loop import Score, Trainer, evaluate, recalibrate, sgd, train


@dataclass(frozen=True)
class Job:
    """The dense network, the images and the settings, for one search."""

    key: str  # of this job among others
    network: bytes  # a .safetensors file as legr writes it
    arch: str | None  # the user's own factory, where it is one
    train: Part
    validation: Part
    feed: Feed
    settings: Search
    device: str
    legr: str = __version__

    def carried(self) -> "Job":
        """The same job for another machine."""
        return replace(self, train=self.train.carried(), validation=self.validation.carried())


@dataclass(frozen=True)
class Outcome:
    """What a network cut from a candidate reached, and the seconds that it took."""

    accuracy: float
    loss: float
    seconds: float  # in all
    adapt_seconds: float
    measure_seconds: float


Cuts = tuple[Channels, ...]  # of a candidate: the channels that it keeps at each share of the FLOPs


def packed(network: Network) -> bytes:
    """A network as the bytes of its file."""
    with tempfile.TemporaryDirectory(prefix="legr-") as folder:
        path = Path(folder, "network.safetensors")
        write_network(network, path)
        return path.read_bytes()


class CandidateEvaluator:
    """A job, opened: the network taken apart, and the device on which candidates are tried."""

    def __init__(self, job: Job, worker: int = 0) -> None:
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
        self.job, self.device = job, choose(job.device, worker)
        if job.settings.amp and half_precision(self.device) is None:
            raise SearchError(
                f"a worker has no half precision on its {self.device.type}: begin without --amp"
            )
        network.model.float()  # images come in single precision
        self.units = couple(network.model, network.input_shape)
        if self.device.type == "cuda":
            torch.backends.cudnn.deterministic = True

    def evaluate_candidate(self, channels: Channels) -> Outcome:
        """Cut the network to these channels, adapt it, and measure it."""
        start = time.perf_counter()
        smaller = apply(self.units, kept_units(self.units, channels))
        smaller = smaller.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        cut = time.perf_counter()
        with seeded(self.device, self.job.settings.seed):
            self._adapt(smaller)
        adapted = time.perf_counter()
        score = self._measure(smaller)
        end = time.perf_counter()
        return Outcome(score.accuracy, score.loss, end - start, adapted - cut, end - adapted)

    def _adapt(self, model: torch.nn.Module) -> None:
        """τ̂ batches of training, or of BatchNorm statistics."""
        job, settings = self.job, self.job.settings
        if settings.fitness == "none" or not settings.steps:
            return
        tuning = settings.fitness == "finetune"
        generator = torch.Generator().manual_seed(settings.seed)

        def epoch() -> Iterator[Batch]:
            serving = Serving(job.feed, settings.batch_size, self.device)
            return shuffled(job.train, serving, generator, augment=tuning)

        few = itertools.islice(endless(epoch), settings.steps)
        if tuning:
            half = half_precision(self.device) if settings.amp else None
            trainer = Trainer(model.requires_grad_(True), sgd(model, settings.lr), half=half)
            train(trainer, few)
        else:
            recalibrate(model, few)

    def _measure(self, model: torch.nn.Module) -> Score:
        """Accuracy and loss on the images held out."""
        size = max(self.job.settings.batch_size, 250)
        serving = Serving(self.job.feed, size, self.device)
        return evaluate(model, in_order(self.job.validation, serving))


_benches: dict[str, CandidateEvaluator] = {}  # of this process: one job at a time
_opening = threading.Lock()


def evaluate_candidate(job: Job, cuts: Cuts, worker: int = 0) -> list[Outcome]:
    """Try a candidate in this process, whose workbench is opened the first time."""
    with _opening:
        if job.key not in _benches:
            _benches.clear()
            _benches[job.key] = CandidateEvaluator(job, worker)
        bench = _benches[job.key]
    return [bench.evaluate_candidate(channels) for channels in cuts]
