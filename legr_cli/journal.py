"""Append-only JSON Lines journals: a header that describes the run, then one line per unit of work.

Each `JournalFormat` is one type of journal, such as the history of a search or the epochs of a
training run.
"""

import contextlib
import errno
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from legr_cli.arguments import option
from legr_cli.errors import LegrError, OutputError, first_line

VERSION = 1
_LABELS = {  # header fields that must match on resume, and what to call them in messages
    "method": "the method",
    "arch": "--arch",
    "weights_sha256": "the checkpoint's weights",
    "teacher_sha256": "the teacher's weights",
    "input": "--input",
    "settings": "",
    "data": "the data",
    "task": "the task (--score, --loss, or the kind of data)",
    "statistics": "--normalize",
    "pictures": "how images are prepared (--resize, --crop, --random-crop, --flip)",
}

_DEFAULTS = {
    "amp": False,
    "sigma": 1.0,
    "freeze_bn": False,
    "explorer": "evolution",
    "metric": "squared-norm",
    "objective": "mean",
    "minutes": None,
    "reject_above": 0.0,
    "repair": 0,
    "teacher": False,
}  # settings missing from journals of older versions

Line = dict[str, Any]


@dataclass(frozen=True)
class JournalFormat:
    """The name, keys and validators of one type of journal."""

    format: str
    work: str  # what is recorded, for messages: "search"
    command: str  # the command that writes it
    key: str  # the field that numbers the lines
    is_header: Callable[[Line], bool]  # whether a header is valid
    is_sound: Callable[[Line, Line], bool]  # whether a line is valid, given the header's settings
    error: type[LegrError]
    anew: str = "pass --force to start over"  # advice when the journal is unusable


class Journal:
    """An open journal; every line is synced to disk before `add` returns."""

    def __init__(self, file: FileIO, kind: JournalFormat, lines: dict[int, Line]) -> None:
        self._file, self._kind, self.lines = file, kind, lines

    def add(self, line: Line) -> None:
        """Append a line."""
        _write(self._file, line)
        self.lines[line[self._kind.key]] = line


def read_header(path: Path, kind: JournalFormat) -> Line | None:
    """Read a journal's header; None if the file does not exist or has no complete header yet."""
    try:
        with path.open("rb", buffering=0) as file:
            return _read(path, kind, file)[0]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"cannot read {path}: {error.strerror}") from error


@contextlib.contextmanager
def journal(
    path: Path,
    kind: JournalFormat,
    header: Line,
    resume: bool,
    force: bool = False,
    keep: int | None = None,
) -> Iterator[Journal]:
    """Create a journal or, with `resume`, reopen one whose header matches.

    `keep` is the number of lines to keep when resuming; None keeps all of them.
    """
    header = {"format": kind.format, "version": VERSION, **header}
    try:
        file = path.open("r+b" if path.exists() else "x+b", buffering=0)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
    with file:
        _lock(file, path, kind)
        if hasattr(os, "register_at_fork"):  # forked data loaders must not inherit the lock
            os.register_at_fork(after_in_child=file.close)
        if not resume and not force and path.stat().st_size:
            raise OutputError(f"{path} already exists: another {kind.work} has just created it")
        stored, lines, end = _read(path, kind, file, keep) if resume else (None, {}, 0)
        if stored is not None:
            _check_same_run(path, kind, stored, json.loads(json.dumps(header)))
        file.seek(end)
        file.truncate()  # drop a partial line left by an interrupted write
        if stored is None:
            _write(file, header)
        book = Journal(file, kind, lines)
        try:
            yield book
        except LegrError:
            if stored is None and not book.lines:
                path.unlink()  # nothing was recorded: leave no empty journal behind
            raise


def _write(file: FileIO, line: Line) -> None:
    """Write one line and sync it to disk."""
    raw = json.dumps(line, allow_nan=False).encode() + b"\n"
    try:
        if file.write(raw) != len(raw):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError as error:
        raise OutputError(
            f"cannot write {file.name}: {error.strerror}; free some space and pass --resume"
        ) from error


def _lock(file: FileIO, path: Path, kind: JournalFormat) -> None:
    """Lock the journal against other processes; the lock is released when this process exits."""
    try:
        import fcntl
    except ImportError:  # Windows, where an open file cannot be replaced anyway
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise kind.error(
            f"another {kind.command} is writing {path}: wait for it to finish, or stop it"
        ) from None


def _read(
    path: Path, kind: JournalFormat, file: FileIO, keep: int | None = None
) -> tuple[Line | None, dict[int, Line], int]:
    """Return the header, the lines by number, and the offset where the last kept line ends."""
    *complete, partial = file.read().split(b"\n")  # partial: empty, or an interrupted write
    if keep is not None:
        complete = complete[: 1 + keep]
    parsed = [_parse(path, kind, number, raw) for number, raw in enumerate(complete, 1)]
    prefix = b'{"format": "' + kind.format.encode()
    if not parsed and partial[: len(prefix)] == prefix[: len(partial)]:  # killed in the header
        return None, {}, 0
    header = parsed[0] if parsed else {}
    ours = (header.get("format"), header.get("version")) == (kind.format, VERSION)
    if not ours or not isinstance(header.get("settings"), dict) or not kind.is_header(header):
        raise kind.error(
            f"{path} is not a {kind.format} file that this version of legr can read: {kind.anew}"
        )
    lines: dict[int, Line] = {}
    for number, line in enumerate(parsed[1:], 2):
        if not kind.is_sound(line, header["settings"]) or line[kind.key] in lines:
            raise kind.error(f"{path}, line {number} is damaged: {kind.anew}")
        lines[line[kind.key]] = line
    return header, lines, sum(len(raw) + 1 for raw in complete)


def is_accuracy(value: Any) -> bool:
    """Whether this is a finite number, as accuracies and custom scores are."""
    return isinstance(value, int | float) and abs(value) < math.inf


def is_scored(line: Line) -> bool:
    """Whether a line has an accuracy, or the score and the figures of another task."""
    figures = line.get("figures", {})
    is_valid = isinstance(figures, dict) and all(map(is_accuracy, figures.values()))
    return is_valid and is_accuracy(line.get("accuracy", line.get("score")))


def is_loss(value: Any) -> bool:
    """Whether this is a finite number, or None, which stands for a NaN or infinite loss."""
    return value is None or (isinstance(value, int | float) and abs(value) < math.inf)


def is_score(value: Any) -> bool:
    """Whether this is an evaluation result: a score, a loss and a number of images."""
    return (
        isinstance(value, dict)
        and is_scored(value)
        and is_loss(value.get("loss"))
        and type(value.get("images")) is int
    )


def _parse(path: Path, kind: JournalFormat, number: int, raw: bytes) -> Line:
    """Parse one line, which must be a JSON object."""
    try:
        line = json.loads(raw)
        if isinstance(line, dict):
            return line
        reason = "not a JSON object"
    except (ValueError, RecursionError) as error:
        reason = first_line(error)
    raise kind.error(f"{path}, line {number} is damaged ({reason}): {kind.anew}") from None


def _check_same_run(path: Path, kind: JournalFormat, stored: Line, header: Line) -> None:
    """Raise unless both headers describe the same run, and list every difference."""
    differences = []
    for key, label in _LABELS.items():
        old: Any = stored.get(key)
        new: Any = header.get(key)
        if old == new:
            continue
        if key in ("settings", "pictures") and isinstance(old, dict) and isinstance(new, dict):
            differences += [
                f"{option(name)} was {old.get(name)}, is now {value}"
                for name, value in new.items()
                if old.get(name, _DEFAULTS.get(name)) != value
            ]
        elif key == "data" and isinstance(old, dict) and {**old, "split": 0} == {**new, "split": 0}:
            differences.append("the train/validation split differs")
        elif key.endswith("sha256"):
            differences.append(f"{label} differ")
        elif isinstance(new, dict) or isinstance(old, dict):
            differences.append(f"{label} differs")
        else:
            differences.append(f"{label} was {old}, is now {new}")
    if differences:
        raise kind.error(
            f"{path} belongs to a different {kind.work}: {'; '.join(differences)}. Resume with the "
            "original settings, or pass --force to start over"
        )
