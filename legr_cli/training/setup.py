"""The inputs of a training run, and the header and notes that record them."""

import dataclasses
import platform
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from legr_cli.channels.part import part_or_whole, whole_of
from legr_cli.data.dataset import Data
from legr_cli.journal import Line
from legr_cli.models.checkpoints import fingerprint
from legr_cli.models.network import Network
from legr_cli.settings import Training
from legr_cli.training.devices import half_precision
from legr_cli.training.objective import reference_from
from legr_cli.training.process_group import ProcessGroup
from legr_cli.training.resume import run_key
from legr_cli.training.run import Run
from legr_cli.training.tasks import CLASSIFICATION, Reference, Task
from legr_cli.version import __version__


@dataclass(frozen=True)
class TrainingSetup:
    """The network to train, the data, the settings and the teacher."""

    network: Network
    data: Data
    settings: Training
    group: ProcessGroup
    header: Line  # of the journal; identifies the run
    teacher: Network | None = None
    task: Task = CLASSIFICATION

    @property
    def half(self) -> torch.dtype | None:
        """The dtype of mixed precision; None: float32."""
        return half_precision(self.group.device) if self.settings.amp else None

    @property
    def part(self) -> str:
        """The part of the network that is trained to match the teacher's; empty: all of it."""
        return self.network.module if self.task.needs_reference else ""

    def run(self, compiled: bool = False, loaders: int | None = None) -> Run:
        """Create the training run, before its first epoch."""
        return Run(
            part_or_whole(self.network.model, self.part),
            self.data,
            self.settings,
            self.group,
            task=self.task,
            teacher=self._teacher(),
            half=self.half,
            compiled=compiled,
            loaders=loaders,
        )

    def _teacher(self) -> Reference | None:
        """The teacher on the device; it sees the same images with its own normalization."""
        if self.teacher is None:
            return None
        return reference_from(self.teacher, self.data, self.group.device, self.half, self.part)

    def trained_network(self, model: nn.Module, header: Line, results: Line) -> Network:
        """The trained network, with notes that record its training."""
        recorded = ("before", "settings", "weights_sha256", "teacher_sha256", "data")
        training = {
            "key": run_key(header),
            **results,
            **{key: header[key] for key in recorded},
            "processes": self.group.size,
            "made_with": {"python": platform.python_version(), "torch": torch.__version__},
        }
        known = {
            "statistics": self.data.feed.statistics,
            "pictures": self.data.pictures,
            "class_names": self.data.class_names,
            "outputs": "values" if self.task.values else None,
        }
        about_data = {key: value for key, value in known.items() if value}
        notes = {**self.network.notes, "legr": __version__, **about_data, "training": training}
        return replace(self.network, model=whole_of(model).cpu(), notes=notes)


def training_setup(
    network: Network,
    data: Data,
    settings: Training,
    group: ProcessGroup,
    teacher: Network | None = None,
    task: Task = CLASSIFICATION,
    stored_settings: Line | None = None,
) -> TrainingSetup:
    """Collect the inputs of a training run, and build its header.

    `stored_settings` replaces the settings in the header.
    """
    header = {
        "arch": str(network.arch),
        "input": list(network.input_shape),
        "weights_sha256": fingerprint(network.model),
        "teacher_sha256": None if teacher is None else fingerprint(teacher.model),
        "settings": stored_settings or _training_as_json(settings),
        "data": data.card,
        "statistics": data.feed.statistics,
        **({} if data.as_before else {"pictures": data.pictures}),
        **task.record,
    }
    return TrainingSetup(network, data, settings, group, header, teacher, task)


def _training_as_json(settings: Training) -> dict[str, Any]:
    """Training settings as journals and notes store them."""
    values = {**dataclasses.asdict(settings), "drops": list(settings.drops)}
    if not settings.freeze_bn:
        del values["freeze_bn"]  # younger than the others: files without it stay as they were
    return values
