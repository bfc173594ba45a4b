"""A training run, ready to start: network, images and teacher that fit, and what is recorded."""

import dataclasses
import platform
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from legr_cli.data.dataset import Data
from legr_cli.data.feed import feed_for
from legr_cli.journal import Line
from legr_cli.models.checkpoints import fingerprint
from legr_cli.models.network import Network
from legr_cli.settings import Training
from legr_cli.training.devices import half_precision
from legr_cli.training.inputs import in_memory_format
from legr_cli.training.objective import Teacher, teacher_from
from legr_cli.training.process_group import ProcessGroup
from legr_cli.training.resume import key_of
from legr_cli.training.run import Run
from legr_cli.training.scores import CLASSIFICATION, Task
from legr_cli.version import __version__


@dataclass(frozen=True)
class TrainingSetup:
    """What is trained, and with what."""

    network: Network
    data: Data
    settings: Training
    group: ProcessGroup
    header: Line  # of the journal: another run has another header
    teacher: Network | None = None
    task: Task = CLASSIFICATION

    @property
    def half(self) -> torch.dtype | None:
        """The type to compute in, if not float32."""
        return half_precision(self.group.device) if self.settings.amp else None

    def run(self, compiled: bool = False, loaders: int | None = None) -> Run:
        """The training run, before its first epoch."""
        return Run(
            self.network.model,
            self.data,
            self.settings,
            self.group,
            task=self.task,
            teacher=self._teacher(),
            half=self.half,
            compiled=compiled,
            loaders=loaders,
        )

    def _teacher(self) -> Teacher | None:
        """The teacher on the device, which sees the same images in its own normalization."""
        if self.teacher is None:
            return None
        shown, model = self.data.feed, self.teacher.model.float()
        fed = in_memory_format(model, self.data).feed
        own = feed_for(fed, self.teacher.notes.get("statistics"))
        model.to(self.group.device, memory_format=own.memory_format)  # type: ignore[call-overload]
        return teacher_from(model, self.half, own, shown)

    def trained(self, model: nn.Module, header: Line, reached: Line) -> Network:
        """A trained network, with notes on how it was made."""
        about = ("before", "settings", "weights_sha256", "teacher_sha256", "data")
        training = {
            "key": key_of(header),
            **reached,
            **{key: header[key] for key in about},
            "processes": self.group.size,
            "made_with": {"python": platform.python_version(), "torch": torch.__version__},
        }
        data = self.data
        about_data = {
            "statistics": data.feed.statistics,
            "pictures": data.pictures,
            "class_names": data.class_names,
        }
        known = {key: value for key, value in about_data.items() if value}
        notes = {**self.network.notes, "legr": __version__, **known, "training": training}
        return replace(self.network, model=model.cpu(), notes=notes)


def training_setup(
    network: Network,
    data: Data,
    settings: Training,
    group: ProcessGroup,
    teacher: Network | None = None,
    task: Task = CLASSIFICATION,
    recorded: Line | None = None,
) -> TrainingSetup:
    """Record what is about to be trained; `recorded` stands for the settings where it is given."""
    header = {
        "arch": str(network.arch),
        "input": list(network.input_shape),
        "weights_sha256": fingerprint(network.model),
        "teacher_sha256": None if teacher is None else fingerprint(teacher.model),
        "settings": recorded or _as_json(settings),
        "data": data.card,
        "statistics": data.feed.statistics,
        **({} if data.as_before else {"pictures": data.pictures}),
    }
    if task is not CLASSIFICATION:
        header["task"] = task.name
    return TrainingSetup(network, data, settings, group, header, teacher, task)


def _as_json(settings: Training) -> dict[str, Any]:
    """Settings as JSON has them."""
    return {**dataclasses.asdict(settings), "drops": list(settings.drops)}
