"""A training made ready: network, images and teacher that fit, and all that is noted of them."""

import dataclasses
import platform
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from legr_cli import __version__
from legr_cli.data.dataset import Data, feed_for
from legr_cli.journal import Line
from legr_cli.models.checkpoints import fingerprint
from legr_cli.models.network import Network
from legr_cli.settings import Training
from legr_cli.training.devices import half_precision
from legr_cli.training.objective import Teacher, teacher_from
from legr_cli.training.process_group import ProcessGroup
from legr_cli.training.resume import key_of
from legr_cli.training.run import Run


@dataclass(frozen=True)
class TrainingSetup:
    """What is trained, and with what."""

    network: Network
    data: Data
    settings: Training
    group: ProcessGroup
    teacher: Network | None = None

    def header(self, settings: Line | None = None) -> Line:
        """What the journal says was done: other settings, another header."""
        return {
            "arch": str(self.network.arch),
            "input": list(self.network.input_shape),
            "weights_sha256": fingerprint(self.network.model),
            "teacher_sha256": None if self.teacher is None else fingerprint(self.teacher.model),
            "settings": settings or _plain(self.settings),
            "data": self.data.card,
            "statistics": self.data.feed.statistics,
        }

    @property
    def half(self) -> torch.dtype | None:
        """What the training computes in, if not in single precision."""
        return half_precision(self.group.device) if self.settings.amp else None

    def run(self, compiled: bool, loaders: int | None) -> Run:
        """The training, before its first epoch."""
        return Run(
            self.network.model,
            self.data,
            self.settings,
            self.group,
            teacher=self._teacher(),
            half=self.half,
            compiled=compiled,
            loaders=loaders,
        )

    def _teacher(self) -> Teacher | None:
        """The teacher on the device, shown the same images in its own normalisation."""
        if self.teacher is None:
            return None
        shown = self.data.feed
        own = feed_for(shown, self.teacher.notes.get("statistics"))
        model = self.teacher.model.float()
        model.to(self.group.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return teacher_from(model, self.half, own, shown)

    def result(self, model: nn.Module, header: Line, reached: Line) -> Network:
        """A trained network, with all that its file says of how it was made."""
        about = ("before", "settings", "weights_sha256", "teacher_sha256", "data")
        training = {
            "key": key_of(header),
            **reached,
            **{key: header[key] for key in about},
            "processes": self.group.size,
            "made_with": {"python": platform.python_version(), "torch": torch.__version__},
        }
        notes = {
            **self.network.notes,
            "legr": __version__,
            "statistics": self.data.feed.statistics,
            "training": training,
        }
        return replace(self.network, model=model.cpu(), notes=notes)


def _plain(settings: Training) -> dict[str, Any]:
    """Settings as JSON has them."""
    return {**dataclasses.asdict(settings), "drops": list(settings.drops)}
