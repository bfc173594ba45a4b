"""A training run: its state, and the training of one epoch.

All random numbers of an epoch depend on the seed, the epoch and the rank of the process only, so an
interrupted and resumed run gives the same weights as an uninterrupted one.
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
from legr_cli.training.meter import Meter, ProgressCallback, StepProgress
from legr_cli.training.objective import objective
from legr_cli.training.process_group import ProcessGroup
from legr_cli.training.recipes import rate
from legr_cli.training.scores import Score, score_in
from legr_cli.training.tasks import CLASSIFICATION, Reference, Task, with_targets

_BEST_SO_FAR = ("epoch", "best_epoch", "best_score", "best_loss")


class Run:
    """The state of a training run: model, optimizer, moving average, and best weights so far."""

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        settings: Training,
        group: ProcessGroup,
        *,
        task: Task = CLASSIFICATION,
        teacher: Reference | None = None,
        half: torch.dtype | None = None,
        compiled: bool = False,
        loaders: int | None = None,
    ) -> None:
        self.data, self.settings, self.group, self.task = data, settings, group, task
        self.teacher = teacher
        self._serving = _serving(
            data, settings, group, group.loaders if loaders is None else loaders
        )
        self.steps = steps_in(data.train, settings.batch_size)
        self.model = _prepared(model)
        self.model.to(group.device, memory_format=data.feed.memory_format)  # type: ignore[call-overload]
        optimizer = sgd(
            self.model,
            settings.lr,
            settings.momentum,
            settings.weight_decay,
            settings.nesterov,
        )
        for parameter in self.model.parameters():
            if parameter.requires_grad:  # create the buffers now, so that a state can be restored
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self._ema = ema_model(self.model, settings.ema) if settings.ema else None
        wrapped = _wrapped(self.model, group, compiled)
        self._trainer = Trainer(
            wrapped,
            optimizer,
            objective(settings, teacher, task),
            half,
            settings.clip,
            settings.freeze_bn,
        )
        self._best = {n: t.clone() for n, t in self.result.state_dict().items()}
        self.best_line: Line | None = None  # the best epoch's scores
        self._best_so_far = torch.tensor([0, 0, -math.inf, math.inf], dtype=torch.double)
        self._scaler_state = torch.zeros(2, dtype=torch.double)  # scale and growth tracker

    @property
    def result(self) -> nn.Module:
        """The network to evaluate and save: the moving average, if there is one."""
        return self.model if self._ema is None else self._ema.module

    @property
    def best_so_far(self) -> dict[str, float]:
        """Number of completed epochs, the best one, and its score and loss."""
        return dict(zip(_BEST_SO_FAR, self._best_so_far.tolist(), strict=True))

    @property
    def epoch(self) -> int:
        """Number of completed epochs."""
        return int(self.best_so_far["epoch"])

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are done, or patience has run out."""
        stale = self.epoch - self.best_so_far["best_epoch"]
        out_of_patience = 0 < self.settings.patience <= stale
        return self.epoch >= self.settings.epochs or out_of_patience

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that the next epoch depends on, not copied."""
        state = self._trainer.optimizer.state
        parts = {
            "model": _all_tensors(self.model),
            "momentum": {
                name: state[parameter]["momentum_buffer"]
                for name, parameter in self.model.named_parameters()
                if parameter.requires_grad
            },
            "average": {} if self._ema is None else _all_tensors(self._ema),
            "best": self._best,
            "loss": {"scale": self._scaler_state},
        }
        return {f"{part}.{name}": t for part, own in parts.items() for name, t in own.items()}

    def replay(self, lines: Iterable[Line]) -> None:
        """Count the epochs that the journal records."""
        for line in lines:
            self._count_epoch(line)

    def synchronize(self) -> None:
        """Give all processes the state that the leader has restored."""
        self.group.broadcast([*self.tensors().values(), self._best_so_far])
        scaler = self._trainer.scaler
        if scaler.is_enabled() and self.epoch:
            scale, growth = self._scaler_state.tolist()
            scaler.load_state_dict(
                {**scaler.state_dict(), "scale": scale, "_growth_tracker": int(growth)}
            )

    def train_epoch(self, on_progress: ProgressCallback) -> Line:
        """Train for one epoch and evaluate; return the epoch's journal line."""
        start = time.perf_counter()
        training = self._train(on_progress)
        trained = time.perf_counter()
        score = self.measure(self.data.validation).line()
        if self._count_epoch(score):
            for name, tensor in self.result.state_dict().items():
                self._best[name].copy_(tensor)
        end = time.perf_counter()
        return {
            "epoch": self.epoch,
            "lr": rate(self.settings, self.epoch - 1 + 0.5 / self.steps),
            "train_loss": training.loss,
            "train_accuracy": training.accuracy,
            **{key: value for key, value in score.items() if key != "images"},
            "best": self.best_so_far["best_epoch"] == self.epoch,
            "images_per_second": round(training.images_per_second, 1),
            "seconds": round(end - start, 3),
            "measure_seconds": round(end - trained, 3),
        }

    def _train(self, on_progress: ProgressCallback) -> StepProgress:
        """Train on every batch of an epoch; return loss and speed over all processes."""
        epoch, settings, group = self.epoch, self.settings, self.group
        images = len(self.data.train)
        meter = Meter(settings, self.task, epoch + 1, images, self.steps, group.device)

        def lr(step: int) -> float:
            return rate(settings, epoch + (step + 0.5) / self.steps)

        def on_step(step: int, outputs: Any, targets: Any, loss: Tensor) -> None:
            if self._ema is not None:
                self._ema.update_parameters(self.model)
            meter.add(step, outputs, targets, loss)
            meter.report(on_progress)

        generator = torch.Generator().manual_seed(derived_seed(settings.seed, epoch))
        batches = shuffled(self.data.train, self._serving, generator)
        with seeded(group.device, derived_seed(settings.seed, epoch, group.rank)):
            try:
                train(self._trainer, batches, lr, on_step)
            except torch.OutOfMemoryError as error:
                raise ModelError(
                    "the device ran out of memory: pass a smaller --batch-size"
                ) from error
        # BatchNorm statistics differ between processes, which saw different images.
        for model in dict.fromkeys((self.model, self.result)):
            group.average(b for b in model.buffers() if b.is_floating_point())
        if scaler := self._trainer.scaler.state_dict():
            self._scaler_state[:] = torch.tensor([scaler["scale"], scaler["_growth_tracker"]])
        return meter.progress(group.sum(meter.sums))

    def count_start(self, before: Line) -> None:
        """Without labels, keep the weights from before training unless an epoch comes closer."""
        if self.task.needs_reference:
            self.best_line = before
            loss = math.inf if before["loss"] is None else before["loss"]
            self._best_so_far[2:] = torch.tensor([score_in(before), loss], dtype=torch.double)

    def _count_epoch(self, line: Line) -> bool:
        """Count a completed epoch; return whether it is the best so far."""
        self._best_so_far[0] += 1
        score, loss = score_in(line), math.inf if line["loss"] is None else line["loss"]
        best = self.best_so_far
        better = (score, -loss) > (best["best_score"], -best["best_loss"])
        better = better or not self.data.held_out  # no validation score to choose by: keep the last
        if better:
            self.best_line = line
            self._best_so_far[1:] = torch.tensor([self.epoch, score, loss], dtype=torch.double)
        return better

    def load_best(self) -> nn.Module:
        """Load the best weights into the network and return it."""
        self.result.load_state_dict(self._best)
        return self.result

    def measure(self, part: Part) -> Score:
        """Evaluate the current network; the processes share the images."""
        group = self.group
        serving = Serving(
            self.data.feed, 250, group.device, group.rank, group.size, self._serving.loaders
        )
        batches = with_targets(self.task, in_order(part, serving), self.teacher)
        return evaluate(self.result, batches, self.task, group.sum)


def _prepared(model: nn.Module) -> nn.Module:
    """Convert the network to float32; if all of its parameters are frozen, unfreeze them."""
    model = model.float()
    parameters = [p for p in model.parameters() if p.is_floating_point()]
    if not parameters:
        raise ModelError("the network has no parameters to train")
    if not any(parameter.requires_grad for parameter in parameters):
        for parameter in parameters:
            parameter.requires_grad_(True)
    return model


def _all_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All tensors of a network, including non-persistent buffers."""
    return {**model.state_dict(), **dict(model.named_buffers())}


def derived_seed(*numbers: int) -> int:
    """Derive a seed from several numbers, such as the user's seed and the epoch."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _wrapped(model: nn.Module, group: ProcessGroup, compiled: bool) -> nn.Module:
    """Wrap the network for training: DistributedDataParallel, and torch.compile if asked."""
    if group.size > 1:
        ids = [group.device.index] if group.device.type == "cuda" else None
        model = nn.parallel.DistributedDataParallel(
            model, device_ids=ids, broadcast_buffers=False, static_graph=True
        )
    return torch.compile(model) if compiled else model  # type: ignore[return-value]


def _serving(data: Data, settings: Training, group: ProcessGroup, loaders: int) -> Serving:
    """How to load training batches; every process gets an equal share of each."""
    size = settings.batch_size
    if size % group.size or size // group.size < 2:
        raise SettingError(
            f"--batch-size {size} cannot be split between {group.size} processes: pass a multiple "
            f"of {group.size}, at least {2 * group.size}"
        )
    fewest = min(len(part) for part in (data.validation, data.test) if part is not None)
    if fewest < group.size:
        raise SettingError(
            f"there are fewer images to measure on ({fewest}) than processes: start fewer"
        )
    if len(data.train) < size and group.size > 1:
        raise SettingError(
            f"--batch-size {size} is larger than the number of training images, "
            f"{len(data.train)}: pass a smaller one"
        )
    return Serving(data.feed, size, group.device, group.rank, group.size, loaders)
