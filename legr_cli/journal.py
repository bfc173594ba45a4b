"""Work on record as it is done: a header that says what is done, then a line for each piece of it.

A `Kind` tells journals apart: the history of a search, the epochs of a training.
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

from legr_cli.errors import LegrError, OutputError, first_line
from legr_cli.settings import option

VERSION = 1
_WORDS = {  # what must be the same when work goes on, as the user knows it
    "method": "the method",
    "arch": "--arch",
    "weights_sha256": "the checkpoint's weights",
    "teacher_sha256": "the teacher's weights",
    "input": "--input",
    "settings": "",
    "data": "the data",
    "statistics": "--normalize",
}

_SINCE = {"amp": False, "sigma": 1.0}  # settings that journals of an older legr do not have

Line = dict[str, Any]


@dataclass(frozen=True)
class JournalFormat:
    """What a journal is about."""

    format: str
    work: str  # "search"
    command: str  # that writes it
    key: str  # of a line: its number
    is_header: Callable[[Line], bool]  # whether a first line has all that is read from it
    is_sound: Callable[[Line, Line], bool]  # whether a line has; beside it the settings
    error: type[LegrError]
    anew: str = "--force begins anew"  # what to do about damage


class Journal:
    """An open journal; each line is on the disk before the work goes on."""

    def __init__(self, file: FileIO, kind: JournalFormat, lines: dict[int, Line]) -> None:
        self._file, self._kind, self.lines = file, kind, lines

    def add(self, line: Line) -> None:
        """Record a piece of work."""
        _write(self._file, line)
        self.lines[line[self._kind.key]] = line


def read_header(path: Path, kind: JournalFormat) -> Line | None:
    """What a journal says was done; None if it does not exist or says nothing yet."""
    try:
        with path.open("rb", buffering=0) as file:
            return _read(path, kind, file)[0]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"{path} cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def journal(
    path: Path,
    kind: JournalFormat,
    header: Line,
    resume: bool,
    force: bool = False,
    keep: int | None = None,
) -> Iterator[Journal]:
    """Open a journal: a new one, or `keep` lines of one of the same work to go on with."""
    header = {"format": kind.format, "version": VERSION, **header}
    try:
        file = path.open("r+b" if path.exists() else "x+b", buffering=0)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
    with file:
        _lock(file, path, kind)
        if hasattr(os, "register_at_fork"):  # a loader process must not hold the lock longer
            os.register_at_fork(after_in_child=file.close)
        if not resume and not force and path.stat().st_size:
            raise OutputError(
                f"{path} is in the way: another {kind.work} has begun there meanwhile"
            )
        found, lines, end = _read(path, kind, file, keep) if resume else (None, {}, 0)
        if found is not None:
            _agree(path, kind, found, json.loads(json.dumps(header)))
        file.seek(end)
        file.truncate()  # a line that was being written when the work was killed
        if found is None:
            _write(file, header)
        yield Journal(file, kind, lines)


def _write(file: FileIO, line: Line) -> None:
    """One line, all the way to the disk."""
    raw = json.dumps(line, allow_nan=False).encode() + b"\n"
    try:
        if file.write(raw) != len(raw):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError as error:
        raise OutputError(
            f"cannot write {file.name}: {error.strerror}; make room and go on with --resume"
        ) from error


def _lock(file: FileIO, path: Path, kind: JournalFormat) -> None:
    """Two processes must not write one journal; the lock goes with the process."""
    try:
        import fcntl
    except ImportError:  # Windows: an open file there cannot be replaced anyway
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise kind.error(
            f"another {kind.command} is writing {path}: wait for it, or stop it"
        ) from None


def _read(
    path: Path, kind: JournalFormat, file: FileIO, keep: int | None = None
) -> tuple[Line | None, dict[int, Line], int]:
    """Header, lines by number, and where the last whole line (that is kept) ends."""
    *whole, torn = file.read().split(b"\n")  # torn: nothing, or half a line
    if keep is not None:
        whole = whole[: 1 + keep]
    found = [_parsed(path, kind, number, raw) for number, raw in enumerate(whole, 1)]
    begins = b'{"format": "' + kind.format.encode()
    if not found and torn[: len(begins)] == begins[: len(torn)]:
        return None, {}, 0
    header = found[0] if found else {}
    ours = (header.get("format"), header.get("version")) == (kind.format, VERSION)
    if not ours or not isinstance(header.get("settings"), dict) or not kind.is_header(header):
        raise kind.error(f"{path} is no {kind.format} that this legr reads: {kind.anew}")
    lines: dict[int, Line] = {}
    for number, line in enumerate(found[1:], 2):
        if not kind.is_sound(line, header["settings"]) or line[kind.key] in lines:
            raise kind.error(f"{path}, line {number} is damaged: {kind.anew}")
        lines[line[kind.key]] = line
    return header, lines, sum(len(raw) + 1 for raw in whole)


def is_accuracy(value: Any) -> bool:
    """Whether this is an accuracy, or a score of the user's own."""
    return isinstance(value, int | float) and abs(value) < math.inf


def is_loss(value: Any) -> bool:
    """Whether this is a loss, or says that it was no number."""
    return value is None or (isinstance(value, int | float) and abs(value) < math.inf)


def is_score(value: Any) -> bool:
    """Whether this is what a network reached on some images."""
    return (
        isinstance(value, dict)
        and is_accuracy(value.get("accuracy"))
        and is_loss(value.get("loss"))
        and type(value.get("images")) is int
    )


def _parsed(path: Path, kind: JournalFormat, number: int, raw: bytes) -> Line:
    """One line."""
    try:
        line = json.loads(raw)
        if isinstance(line, dict):
            return line
        reason = "no object"
    except (ValueError, RecursionError) as error:
        reason = first_line(error)
    raise kind.error(f"{path}, line {number} is damaged ({reason}): {kind.anew}") from None


def _agree(path: Path, kind: JournalFormat, then: Line, now: Line) -> None:
    """Refuse to go on with other work, and name all that differs."""
    differs = []
    for key, words in _WORDS.items():
        old: Any = then.get(key)
        new: Any = now.get(key)
        if old == new:
            continue
        if key == "settings" and isinstance(old, dict):
            differs += [
                f"{option(name)} was {old.get(name)}, is {value}"
                for name, value in new.items()
                if old.get(name, _SINCE.get(name)) != value
            ]
        elif key == "data" and isinstance(old, dict) and {**old, "split": 0} == {**new, "split": 0}:
            differs.append("the split of the data is another")
        elif key.endswith("sha256") or isinstance(new, dict):
            differs.append(f"{words} {'is another' if words.startswith('--') else 'are others'}")
        else:
            differs.append(f"{words} was {old}, is {new}")
    if differs:
        raise kind.error(
            f"{path} is of another {kind.work}: {'; '.join(differs)}. Resume with what it was "
            "begun with, or begin anew with --force"
        )
