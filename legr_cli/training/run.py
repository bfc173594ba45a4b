"""The state of a training run, and how it advances by an epoch.

Everything an epoch draws at random comes from the seed, its number and the rank of the process, so
a run that is killed and resumed ends exactly as one that was not.
"""

import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from legr_cli.data.batches import Serving, in_order, shuffled, steps_in
from legr_cli.data.dataset import Data, Part
from legr_cli.errors import ModelError, SettingError
from legr_cli.journal import Line
from legr_cli.settings import Training
from legr_cli.training.devices import seeded
from legr_cli.training.ema import ema_model
from legr_cli.training.loop import Trainer, evaluate, sgd, train
from legr_cli.training.meter import Meter, StepProgress, Watch
from legr_cli.training.objective import Teacher, objective
from legr_cli.training.process_group import ProcessGroup
from legr_cli.training.recipes import rate
from legr_cli.training.scores import CLASSIFICATION, Score, Task, finite

_STANDING = ("epoch", "best_epoch", "best_accuracy", "best_loss")


class Run:
    """A training run: model, optimizer, moving average and the best weights so far."""

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        settings: Training,
        group: ProcessGroup,
        *,
        task: Task = CLASSIFICATION,
        teacher: Teacher | None = None,
        half: torch.dtype | None = None,
        compiled: bool = False,
        loaders: int | None = None,
    ) -> None:
        self.data, self.settings, self.group, self.task = data, settings, group, task
        self._serving = _serving(
            data, settings, group, group.loaders if loaders is None else loaders
        )
        self.steps = steps_in(data.train, settings.batch_size)
        self.model = _trainable(model)
        self.model.to(group.device, memory_format=data.feed.memory_format)  # type: ignore[call-overload]
        optimizer = sgd(
            self.model,
            settings.lr,
            settings.momentum,
            settings.weight_decay,
            settings.nesterov,
        )
        for parameter in self.model.parameters():
            if parameter.requires_grad:  # zeros are what SGD begins with
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self._average = ema_model(self.model, settings.ema) if settings.ema else None
        worked = _worked(self.model, group, compiled)
        self._trainer = Trainer(
            worked, optimizer, objective(settings, teacher, task), half, settings.clip
        )
        self._best = {n: t.clone() for n, t in self.result.state_dict().items()}
        self._best_so_far = torch.tensor([0, 0, -math.inf, math.inf], dtype=torch.double)
        self._scale = torch.zeros(2, dtype=torch.double)  # of the loss in float16

    @property
    def result(self) -> nn.Module:
        """The network that is measured and saved: the moving average, if there is one."""
        return self.model if self._average is None else self._average.module

    @property
    def best_so_far(self) -> dict[str, float]:
        """Number of completed epochs, the best one, and its accuracy and loss."""
        return dict(zip(_STANDING, self._best_so_far.tolist(), strict=True))

    @property
    def epoch(self) -> int:
        """Number of completed epochs."""
        return int(self.best_so_far["epoch"])

    @property
    def over(self) -> bool:
        """Whether all epochs are done, or patience has run out."""
        since = self.epoch - self.best_so_far["best_epoch"]
        tired = self.settings.patience and since >= self.settings.patience
        return self.epoch >= self.settings.epochs or bool(tired)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the next epoch depends on, not copied."""
        state = self._trainer.optimizer.state
        parts = {
            "model": _whole(self.model),
            "momentum": {
                name: state[parameter]["momentum_buffer"]
                for name, parameter in self.model.named_parameters()
                if parameter.requires_grad
            },
            "average": {} if self._average is None else _whole(self._average),
            "best": self._best,
            "loss": {"scale": self._scale},
        }
        return {f"{part}.{name}": t for part, of in parts.items() for name, t in of.items()}

    def recall(self, lines: Iterable[Line]) -> None:
        """Take over the results of epochs that the journal records."""
        for line in lines:
            self._done(line["accuracy"], line["loss"])

    def agree(self) -> None:
        """Start all processes from what the leader has restored."""
        self.group.follow([*self.tensors().values(), self._best_so_far])
        scaler = self._trainer.scaler
        if scaler.is_enabled() and self.epoch:
            scale, growth = self._scale.tolist()
            scaler.load_state_dict(
                {**scaler.state_dict(), "scale": scale, "_growth_tracker": int(growth)}
            )

    def advance(self, watch: Watch) -> Line:
        """Train for one epoch and measure; returns the epoch's journal line."""
        begun = time.perf_counter()
        reached = self._learn(watch)
        trained = time.perf_counter()
        score = self.measure(self.data.validation)
        if self._done(score.accuracy, finite(score.loss)):
            for name, tensor in self.result.state_dict().items():
                self._best[name].copy_(tensor)
        end = time.perf_counter()
        return {
            "epoch": self.epoch,
            "lr": rate(self.settings, self.epoch - 1 + 0.5 / self.steps),
            "train_loss": reached.loss,
            "train_accuracy": reached.accuracy,
            "accuracy": score.accuracy,
            "loss": finite(score.loss),
            "best": self.best_so_far["best_epoch"] == self.epoch,
            "images_per_second": round(reached.images_per_second, 1),
            "seconds": round(end - begun, 3),
            "measure_seconds": round(end - trained, 3),
        }

    def _learn(self, watch: Watch) -> StepProgress:
        """One step for each batch of an epoch."""
        epoch, settings, group = self.epoch, self.settings, self.group
        images = len(self.data.train)
        meter = Meter(settings, self.task, epoch + 1, images, self.steps, group.device)

        def lr(step: int) -> float:
            return rate(settings, epoch + (step + 0.5) / self.steps)

        def after(step: int, outputs: Any, targets: Tensor, loss: Tensor) -> None:
            if self._average is not None:
                self._average.update_parameters(self.model)
            meter.add(step, outputs, targets, loss)
            meter.look(watch)

        generator = torch.Generator().manual_seed(seed_of(settings.seed, epoch))
        batches = shuffled(self.data.train, self._serving, generator)
        with seeded(group.device, seed_of(settings.seed, epoch, group.rank)):
            try:
                train(self._trainer, batches, lr, after)
            except torch.OutOfMemoryError as error:
                raise ModelError(
                    "the device ran out of memory: pass a smaller --batch-size"
                ) from error
        for model in dict.fromkeys((self.model, self.result)):  # each process saw other images
            group.average(b for b in model.buffers() if b.is_floating_point())
        if scaler := self._trainer.scaler.state_dict():
            self._scale[:] = torch.tensor([scaler["scale"], scaler["_growth_tracker"]])
        return meter.now(group.sum(meter.sums))

    def _done(self, accuracy: float, loss: float | None) -> bool:
        """Count an epoch; returns whether it is the best so far."""
        self._best_so_far[0] += 1
        loss = math.inf if loss is None else loss
        best = self.best_so_far
        better = (accuracy, -loss) > (best["best_accuracy"], -best["best_loss"])
        better = better or not self.data.held_out  # nothing to choose by: keep the last
        if better:
            self._best_so_far[1:] = torch.tensor([self.epoch, accuracy, loss], dtype=torch.double)
        return better

    def finish(self) -> nn.Module:
        """Load the best weights; they are what `measure` sees from now on."""
        self.result.load_state_dict(self._best)
        return self.result

    def measure(self, part: Part) -> Score:
        """Score of the network as it is now; the processes share the images."""
        group = self.group
        serving = Serving(
            self.data.feed, 250, group.device, group.rank, group.size, self._serving.loaders
        )
        return evaluate(self.result, in_order(part, serving), self.task, group.sum)


def _trainable(model: nn.Module) -> nn.Module:
    """The network in float32; if all its parameters are frozen, all are trained."""
    others = [n for n, t in model.state_dict().items() if not isinstance(t, Tensor)]
    if others:
        raise ModelError(f"the network's state dict has more than tensors: '{others[0]}'")
    model = model.float()
    parameters = [p for p in model.parameters() if p.is_floating_point()]
    if not parameters:
        raise ModelError("the network has no parameters: there is nothing to train")
    if not any(parameter.requires_grad for parameter in parameters):
        for parameter in parameters:
            parameter.requires_grad_(True)
    return model


def _whole(model: nn.Module) -> dict[str, Tensor]:
    """All tensors of a network, including buffers that its state dict leaves out."""
    return {**model.state_dict(), **dict(model.named_buffers())}


def seed_of(*numbers: int) -> int:
    """One seed derived from several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _worked(model: nn.Module, group: ProcessGroup, compiled: bool) -> nn.Module:
    """The network wrapped for training: synchronized with other processes, compiled if asked."""
    if group.size > 1:
        ids = [group.device.index] if group.device.type == "cuda" else None
        model = nn.parallel.DistributedDataParallel(
            model, device_ids=ids, broadcast_buffers=False, static_graph=True
        )
    return torch.compile(model) if compiled else model  # type: ignore[return-value]


def _serving(data: Data, settings: Training, group: ProcessGroup, loaders: int) -> Serving:
    """How training images are served; every process gets the same number of each batch."""
    size = settings.batch_size
    if size % group.size or size // group.size < 2:
        raise SettingError(
            f"--batch-size {size} is shared by {group.size} processes: pass a multiple of "
            f"{group.size}, at least {2 * group.size}"
        )
    if len(data.train) < size and group.size > 1:
        raise SettingError(
            f"--batch-size {size} is larger than the {len(data.train)} training images: pass a "
            "smaller one"
        )
    return Serving(data.feed, size, group.device, group.rank, group.size, loaders)
