"""A training from its first epoch to its best network.

All that an epoch draws comes from the seed, its number and the process's rank, so a training that
goes on after a kill ends as if it had never stopped.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from legr_cli.errors import ModelError, SettingError, TrainingError
from legr_cli.settings import Training
from legr_cli.training.batches import Serving, in_order, shuffled, steps_in
from legr_cli.training.data import Data, Part
from legr_cli.training.loop import Score, Trainer, evaluate, number, sgd, train
from legr_cli.training.objective import Teacher, objective
from legr_cli.training.recipes import rate
from legr_cli.training.team import Team

_LOOK = 0.5  # seconds between looks at the loss, for which the device must finish its work
_STANDING = ("epoch", "best_epoch", "best_accuracy", "best_loss")


@dataclass(frozen=True)
class Progress:
    """What there is to see in the middle of an epoch."""

    epoch: int  # from 1
    step: int  # done, of this epoch
    steps: int
    loss: float  # mean over this epoch's images so far
    accuracy: float  # on them, before each step
    images_per_second: float


class Run:
    """The state of a training, and how it moves on by an epoch."""

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        settings: Training,
        team: Team,
        *,
        teacher: Teacher | None = None,
        half: torch.dtype | None = None,
        compiled: bool = False,
        loaders: int | None = None,
    ) -> None:
        self.data, self.settings, self.team = data, settings, team
        self._serving = _serving(data, settings, team, team.loaders if loaders is None else loaders)
        self.steps = steps_in(data.train, settings.batch_size)
        self.model = model.float().requires_grad_(True)
        self.model.to(team.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = sgd(
            self.model,
            settings.lr,
            settings.momentum,
            settings.weight_decay,
            settings.nesterov,
        )
        for parameter in self.model.parameters():  # zeros are what SGD begins with
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self._average = (
            AveragedModel(self.model, multi_avg_fn=_moving(settings.ema), use_buffers=True)
            if settings.ema
            else None
        )
        worked = _worked(self.model, team, compiled)
        self._trainer = Trainer(
            worked, optimizer, objective(settings, teacher), half, settings.clip
        )
        self._best = {n: t.clone() for n, t in self.result.state_dict().items()}
        self._standing = torch.tensor([0, 0, -1, math.inf], dtype=torch.double)
        self._scale = torch.zeros(2, dtype=torch.double)  # of the loss in float16

    @property
    def result(self) -> nn.Module:
        """The network that is measured and written: the average, if there is one."""
        return self.model if self._average is None else self._average.module

    @property
    def standing(self) -> dict[str, float]:
        """Epochs that are done, which was best, and what it reached."""
        return dict(zip(_STANDING, self._standing.tolist(), strict=True))

    @property
    def epoch(self) -> int:
        """Epochs that are done."""
        return int(self.standing["epoch"])

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do: all epochs, or patience, are gone."""
        since = self.epoch - self.standing["best_epoch"]
        tired = self.settings.patience and since >= self.settings.patience
        return self.epoch >= self.settings.epochs or bool(tired)

    def tensors(self) -> dict[str, Tensor]:
        """All that the next epoch depends on, as it lies in memory."""
        state = self._trainer.optimizer.state
        momenta = {n: state[p]["momentum_buffer"] for n, p in self.model.named_parameters()}
        average = {} if self._average is None else self._average.state_dict()
        parts = {
            "model": self.model.state_dict(),
            "momentum": momenta,
            "average": average,
            "best": self._best,
            "run": {"standing": self._standing, "scale": self._scale},
        }
        return {f"{part}.{name}": t for part, of in parts.items() for name, t in of.items()}

    def agree(self) -> None:
        """Begin all processes from what the leading one has restored."""
        self.team.follow(self.tensors().values())
        scaler = self._trainer.scaler
        if scaler.is_enabled() and self.epoch:
            scale, growth = self._scale.tolist()
            scaler.load_state_dict(
                {**scaler.state_dict(), "scale": scale, "_growth_tracker": int(growth)}
            )

    def advance(self, watch: Callable[[Progress], None]) -> dict[str, Any]:
        """Train for one epoch and measure; the line that the journal has of it."""
        epoch, seed = self.epoch, self.settings.seed
        begun = time.perf_counter()
        tally = _Tally(self, epoch + 1, watch)
        generator = torch.Generator().manual_seed(_seed(seed, epoch))
        own = [self.team.device] if self.team.device.type == "cuda" else []

        def lr(step: int) -> float:
            return rate(self.settings, epoch + (step + 0.5) / self.steps)

        def after(*step: Any) -> None:
            if self._average is not None:
                self._average.update_parameters(self.model)
            tally.add(*step)

        with torch.random.fork_rng(devices=own):  # for dropout and the like
            torch.manual_seed(_seed(seed, epoch, self.team.rank))
            try:
                train(
                    self._trainer,
                    shuffled(self.data.train, self._serving, generator),
                    lr,
                    after,
                )
            except torch.OutOfMemoryError as error:
                raise ModelError(
                    "the device has too little memory: pass a smaller --batch-size"
                ) from error
        reached = tally.finish()
        for model in dict.fromkeys((self.model, self.result)):  # each has seen its own images
            self.team.average(b for b in model.buffers() if b.is_floating_point())
        trained = time.perf_counter()
        score = self.measure(self.data.validation)
        self._standing[0] = epoch + 1
        if scaler := self._trainer.scaler.state_dict():
            self._scale[:] = torch.tensor([scaler["scale"], scaler["_growth_tracker"]])
        loss = score.loss if math.isfinite(score.loss) else math.inf
        best = self.standing
        if (score.accuracy, -loss) > (best["best_accuracy"], -best["best_loss"]):
            self._standing[1:] = torch.tensor([epoch + 1, score.accuracy, loss], dtype=torch.double)
            for name, tensor in self.result.state_dict().items():
                self._best[name].copy_(tensor)
        end = time.perf_counter()
        return {
            "epoch": epoch + 1,
            "lr": lr(0),
            "train_loss": reached.loss,
            "train_accuracy": reached.accuracy,
            "accuracy": score.accuracy,
            "loss": number(score.loss),
            "best": self.standing["best_epoch"] == epoch + 1,
            "images_per_second": round(reached.images_per_second, 1),
            "seconds": round(end - begun, 3),
            "measure_seconds": round(end - trained, 3),
        }

    def finish(self) -> nn.Module:
        """The best network there was; it is what is measured from now on."""
        self.result.load_state_dict(self._best)
        return self.result

    def measure(self, part: Part) -> Score:
        """Accuracy and loss of the network as it is now; the processes share the images."""
        team = self.team
        serving = Serving(
            self.data.feed, 250, team.device, team.rank, team.size, self._serving.loaders
        )
        return evaluate(self.result, in_order(part, serving), team.sum)


class _Tally:
    """Loss, accuracy and speed of an epoch as it goes, summed on the device."""

    def __init__(self, run: Run, epoch: int, watch: Callable[[Progress], None]) -> None:
        self.run, self.epoch, self.watch = run, epoch, watch
        self.sums = torch.zeros(3, device=run.team.device)
        self.step, self.begun = 0, time.perf_counter()
        self.looked = self.begun

    def add(self, step: int, logits: Tensor, labels: Tensor, loss: Tensor) -> None:
        """Count a step, and now and then show where things stand."""
        right = (logits.argmax(1) == labels).sum()
        count = torch.full_like(loss, len(labels))
        self.sums += torch.stack([loss * len(labels), right, count])
        self.step = step + 1
        if time.perf_counter() - self.looked >= _LOOK:
            self.watch(self.now(self.sums.tolist()))

    def now(self, sums: list[float]) -> Progress:
        """Where things stand; an error if the loss is no number any more."""
        self.looked = time.perf_counter()
        loss, right, count = sums
        if not math.isfinite(loss):
            raise TrainingError(_diverged(self.run, self.epoch))
        seen = min(self.step * self.run.settings.batch_size, len(self.run.data.train))
        speed = seen / (self.looked - self.begun)
        return Progress(self.epoch, self.step, self.run.steps, loss / count, right / count, speed)

    def finish(self) -> Progress:
        """The whole epoch, over all processes."""
        return self.now(self.run.team.sum(self.sums).tolist())


def _diverged(run: Run, epoch: int) -> str:
    """What to do about a loss that is no number."""
    settings = run.settings
    advice = [f"a lower --lr than {settings.lr:g}"]
    if not settings.clip:
        advice.append("--clip 1")
    if not settings.warmup:
        advice.append("--warmup 0.1")
    if settings.amp:
        advice.append("no --amp")
    done = run.epoch
    kept = f"the state after epoch {done} is kept" if done else "nothing was written"
    return (
        f"the loss is no number any more in epoch {epoch}; {kept}. Begin anew with --force and "
        f"{' or '.join(advice)}"
    )


def _seed(*numbers: int) -> int:
    """A seed made of several numbers, another for any other numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _moving(decay: float) -> Callable[[Any, Any, Any], None]:
    """An exponential average that is short while there is little to average over."""

    @torch.no_grad()
    def update(averages: Any, values: Any, updates: Any) -> None:
        count = int(updates)
        weight = 1 - min(decay, (1 + count) / (10 + count))
        if averages[0].is_floating_point():
            torch._foreach_lerp_(averages, values, weight)
        else:
            torch._foreach_copy_(averages, values)  # how many batches were seen

    return update


def _worked(model: nn.Module, team: Team, compiled: bool) -> nn.Module:
    """The network as it is trained: in step with the other processes, and compiled if asked."""
    if team.size > 1:
        ids = [team.device.index] if team.device.type == "cuda" else None
        model = nn.parallel.DistributedDataParallel(
            model, device_ids=ids, broadcast_buffers=False, static_graph=True
        )
    return torch.compile(model) if compiled else model  # type: ignore[return-value]


def _serving(data: Data, settings: Training, team: Team, loaders: int) -> Serving:
    """How training images are served; every process must get as many of each batch."""
    size = settings.batch_size
    if size % team.size or size // team.size < 2:
        raise SettingError(
            f"--batch-size {size} is shared by {team.size} processes: pass a multiple of "
            f"{team.size}, from {2 * team.size} on"
        )
    if len(data.train) < size and team.size > 1:
        raise SettingError(
            f"--batch-size {size} is more than the {len(data.train)} training images: pass less"
        )
    return Serving(data.feed, size, team.device, team.rank, team.size, loaders)
