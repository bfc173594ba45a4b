"""What a training leaves on the disk as it goes: NAME.epochs.jsonl, and NAME.state to go on from.

The line of an epoch is written before its state, so a kill between the two costs that line: it is
dropped, and the epoch done again. What works in rounds or trials is recorded in the same way.
"""

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from legr_cli.errors import CheckpointError, OutputError, TrainingError, first_line
from legr_cli.files import check_out, staged
from legr_cli.journal import (
    Journal,
    JournalFormat,
    Line,
    is_accuracy,
    is_loss,
    is_score,
    journal,
    read_header,
)
from legr_cli.models.card import read_notes
from legr_cli.models.checkpoints import read_safetensors, write_weights
from legr_cli.models.network import Network, write_network

FORMAT, VERSION = "legr-training", 1
_KEY = "legr"
_SHOWN = {"before", "epochs", "best_epoch", "validation", "test", "settings"}


def _is_header(line: Line) -> bool:
    """Whether a first line has what a training reads from it."""
    return is_score(line.get("before"))


def _is_sound(line: Line, _settings: Line) -> bool:
    """Whether an epoch's line has all that is read from it."""
    number = line.get("epoch")
    return (
        type(number) is int
        and number >= 1
        and is_accuracy(line.get("accuracy"))
        and is_loss(line.get("loss", math.inf))
        and isinstance(seconds := line.get("seconds"), int | float)
        and 0 <= seconds < 1e12
    )


EPOCHS = JournalFormat(
    format="legr-epochs",
    work="training",
    command="legr finetune",
    key="epoch",
    is_header=_is_header,
    is_sound=_is_sound,
    error=TrainingError,
)


@dataclass(frozen=True)
class Files:
    """The network to write, and what a training leaves beside it."""

    out: Path
    resume: bool
    force: bool
    kind: JournalFormat = EPOCHS

    @property
    def epochs(self) -> Path:
        """The journal: `NAME.epochs.jsonl`."""
        return self.out.with_suffix(f".{self.kind.key}s.jsonl")

    @property
    def state(self) -> Path:
        """What a training goes on from: `NAME.state`, gone when all is done."""
        return self.out.with_suffix(".state")

    def check(self) -> None:
        """Say what is in the way before any work is done."""
        beside = {"a network": self.out, "its state": self.state, "a training": self.epochs}
        check_out(self.out, ".safetensors", beside, self.resume, self.force)

    def begun(self) -> Line | None:
        """The header of a training to go on with, of which an epoch is done."""
        return read_header(self.epochs, self.kind) if self.resume and self.state.exists() else None

    def done(self, key: str) -> Line | None:
        """What a network's file says of its training, if it is this one and complete."""
        if not self.resume or not self.out.exists() or self.state.exists():
            return None
        training = read_notes(self.out).get("training")
        if not isinstance(training, dict) or training.get("key") != key:
            return None
        return training if _SHOWN.issubset(training) else None

    def finish(self, network: Network) -> None:
        """Write the network; its state is of no more use then."""
        with staged() as files:
            write_network(network, files.file(self.out))
        self.state.unlink(missing_ok=True)


@contextlib.contextmanager
def recorded(files: Files, header: Line, tensors: dict[str, Tensor]) -> Iterator["Record"]:
    """Open the record of a training; one that goes on gives `tensors` what it had stopped with."""
    key = key_of(header)
    anew = files.kind.anew
    found = read_state(files.state, anew) if files.resume and files.state.exists() else None
    done = 0 if found is None else found.epoch
    foreign = files.resume and found is None and files.out.exists()
    keep = None if foreign else done
    with journal(files.epochs, files.kind, header, files.resume, files.force, keep) as book:
        if foreign:
            raise OutputError(
                f"{files.out} is in the way, a network that this training did not write: "
                "--force replaces it"
            )
        if found is None:
            files.state.unlink(missing_ok=True)
        elif found.run != key or list(book.lines) != list(range(1, done + 1)):
            raise TrainingError(
                f"{files.state} is not of the {files.kind.work} in {files.epochs.name}: {anew}"
            )
        else:
            restore(files.state, found.tensors, tensors, anew)
        yield Record(files, key, book)


@dataclass(frozen=True)
class Record:
    """An open record."""

    files: Files
    key: str
    book: Journal

    def keep(self, line: Line, tensors: dict[str, Tensor]) -> None:
        """An epoch is done: first its line, then all that the next one needs."""
        self.book.add(line)
        write_state(self.files.state, self.key, line[self.files.kind.key], tensors)


@dataclass(frozen=True)
class State:
    """What a training stopped with."""

    run: str  # which training
    epoch: int  # how many are done
    tensors: dict[str, Tensor]


def key_of(header: Line) -> str:
    """What tells a training from others; of what was measured, nothing."""
    about = {key: value for key, value in header.items() if key != "before"}
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def write_state(path: Path, run: str, epoch: int, tensors: dict[str, Tensor]) -> None:
    """Replace the state by that after an epoch, whole or not at all."""
    notes = {"format": FORMAT, "version": VERSION, "run": run, "epoch": epoch}
    try:
        with staged() as files:
            write_weights(tensors, {_KEY: json.dumps(notes)}, files.file(path))
    except OutputError as error:
        kept = f"the state after epoch {epoch - 1} is kept" if epoch > 1 else "no epoch is kept"
        raise OutputError(f"{error}: {kept}; make room and go on with --resume") from error


def read_state(path: Path, anew: str = EPOCHS.anew) -> State:
    """A state as it was written."""
    try:
        tensors, header = read_safetensors(path)
        notes: Any = json.loads(header[_KEY])
        ours = (notes["format"], notes["version"]) == (FORMAT, VERSION)
    except (CheckpointError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TrainingError(f"{path} is damaged ({first_line(error)}): {anew}") from error
    run, epoch = notes.get("run"), notes.get("epoch")
    if not ours or type(epoch) is not int or epoch < 1:
        raise TrainingError(f"{path} is no training that this legr reads: {anew}")
    return State(str(run), epoch, tensors)


def restore(
    path: Path, found: dict[str, Tensor], into: dict[str, Tensor], anew: str = EPOCHS.anew
) -> None:
    """Give every tensor of a run its numbers in a state; all fit, or none is changed."""
    strange = set(found) ^ set(into)
    both = set(found) & set(into)
    strange |= {n for n in both if found[n].shape != into[n].shape}
    strange |= {n for n in both if found[n].dtype != into[n].dtype}
    if strange:
        raise TrainingError(f"{path} does not fit this network at '{min(strange)}': {anew}")
    for name, tensor in into.items():
        tensor.copy_(found[name])
