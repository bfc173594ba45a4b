"""Resumable training: NAME.epochs.jsonl records the epochs, NAME.state is the last checkpoint.

The line of an epoch is written before its state. If the process is killed between the two, the line
is dropped on resume and the epoch is repeated. Methods that work in rounds or trials use the same
mechanism, as NAME.rounds.jsonl.
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
    is_loss,
    is_score,
    is_scored,
    journal,
    read_header,
)
from legr_cli.models.card import read_notes
from legr_cli.models.checkpoints import read_safetensors, write_weights
from legr_cli.models.network import Network, write_network

FORMAT, VERSION = "legr-training", 1
_KEY = "legr"
_REQUIRED = {"before", "epochs", "best_epoch", "validation", "test", "settings"}


def _is_header(line: Line) -> bool:
    """Whether a header is valid."""
    return is_score(line.get("before"))


def _is_sound(line: Line, _settings: Line) -> bool:
    """Whether the line of an epoch is valid."""
    number = line.get("epoch")
    return (
        type(number) is int
        and number >= 1
        and is_scored(line)
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
class RunFiles:
    """The network to write, and the journal and state next to it."""

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
        """The checkpoint to resume from: `NAME.state`, deleted when training is complete."""
        return self.out.with_suffix(".state")

    def check(self) -> None:
        """Raise before any work is done if existing files would be overwritten."""
        beside = {"a network": self.out, "its state": self.state, "a training": self.epochs}
        check_out(self.out, ".safetensors", beside, self.resume, self.force)

    def stored_header(self) -> Line | None:
        """The header of the run to resume; None if it has not completed an epoch."""
        return read_header(self.epochs, self.kind) if self.resume and self.state.exists() else None

    def completed(self, key: str) -> Line | None:
        """The training record in the network's file, if this run is already complete."""
        if not self.resume or not self.out.exists() or self.state.exists():
            return None
        training = read_notes(self.out).get("training")
        if not isinstance(training, dict) or training.get("key") != key:
            return None
        return training if _REQUIRED.issubset(training) else None

    def finish(self, network: Network) -> None:
        """Write the network and delete the state, which is no longer needed."""
        with staged() as files:
            write_network(network, files.file(self.out))
        self.state.unlink(missing_ok=True)


@contextlib.contextmanager
def open_record(files: RunFiles, header: Line, tensors: dict[str, Tensor]) -> Iterator["Record"]:
    """Open the journal and state of a run; when resuming, restore `tensors` from the state."""
    key = run_key(header)
    advice = files.kind.anew
    state = read_state(files.state, advice) if files.resume and files.state.exists() else None
    done = 0 if state is None else state.epoch
    out_is_foreign = files.resume and state is None and files.out.exists()
    keep = None if out_is_foreign else done
    with journal(files.epochs, files.kind, header, files.resume, files.force, keep) as book:
        if out_is_foreign:
            raise OutputError(
                f"{files.out} already exists and was not written by this training: "
                "pass --force to overwrite it"
            )
        if state is None:
            files.state.unlink(missing_ok=True)
        elif state.run != key or list(book.lines) != list(range(1, done + 1)):
            raise TrainingError(
                f"{files.state} does not belong to the {files.kind.work} in {files.epochs.name}: "
                f"{advice}"
            )
        else:
            restore(files.state, state.tensors, tensors, advice)
        yield Record(files, key, book)


@dataclass(frozen=True)
class Record:
    """The open journal and state of a run."""

    files: RunFiles
    key: str
    book: Journal

    def add(self, line: Line, tensors: dict[str, Tensor]) -> None:
        """Record a completed epoch: first its line, then the state that the next epoch needs."""
        self.book.add(line)
        write_state(self.files.state, self.key, line[self.files.kind.key], tensors)


@dataclass(frozen=True)
class State:
    """The checkpoint of an unfinished run."""

    run: str  # identifies the run; see `run_key`
    epoch: int  # number of completed epochs
    tensors: dict[str, Tensor]


def run_key(header: Line) -> str:
    """SHA-256 of a header without its measurements; identifies the run."""
    fields = {key: value for key, value in header.items() if key != "before"}
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def write_state(path: Path, run: str, epoch: int, tensors: dict[str, Tensor]) -> None:
    """Atomically replace the state file by the state after `epoch`."""
    notes = {"format": FORMAT, "version": VERSION, "run": run, "epoch": epoch}
    try:
        with staged() as files:
            write_weights(tensors, {_KEY: json.dumps(notes)}, files.file(path))
    except OutputError as error:
        kept = f"the state after epoch {epoch - 1} is kept" if epoch > 1 else "no epoch was saved"
        raise OutputError(f"{error}: {kept}; free some space and pass --resume") from error


def read_state(path: Path, advice: str = EPOCHS.anew) -> State:
    """Read a state file; `advice` ends the message if it is unusable."""
    try:
        tensors, header = read_safetensors(path)
        notes: Any = json.loads(header[_KEY])
        ours = (notes["format"], notes["version"]) == (FORMAT, VERSION)
    except (CheckpointError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TrainingError(f"{path} is damaged ({first_line(error)}): {advice}") from error
    run, epoch = notes.get("run"), notes.get("epoch")
    if not ours or type(epoch) is not int or epoch < 1:
        raise TrainingError(
            f"{path} is not a state file that this version of legr can read: {advice}"
        )
    return State(str(run), epoch, tensors)


def restore(
    path: Path, saved: dict[str, Tensor], tensors: dict[str, Tensor], advice: str = EPOCHS.anew
) -> None:
    """Copy the saved tensors into `tensors`; if any does not fit, raise and change none."""
    mismatched = set(saved) ^ set(tensors)
    common = set(saved) & set(tensors)
    mismatched |= {n for n in common if saved[n].shape != tensors[n].shape}
    mismatched |= {n for n in common if saved[n].dtype != tensors[n].dtype}
    if mismatched:
        raise TrainingError(f"{path} does not match this network at '{min(mismatched)}': {advice}")
    for name, tensor in tensors.items():
        tensor.copy_(saved[name])
