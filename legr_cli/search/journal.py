"""NAME.history.jsonl: what was searched, then a line for each candidate as it finished.

A search that was stopped is repeated from its seed with the recorded outcomes; only candidates
without a line are tried again. So what follows does not depend on when it was stopped.
"""

import contextlib
import errno
import json
import math
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from legr_cli.errors import OutputError, SearchError, first_line
from legr_cli.settings import option

FORMAT, VERSION = "legr-history", 1
MUST_AGREE = ("arch", "weights_sha256", "input", "settings", "data", "statistics")
_WORDS = {
    "arch": "--arch",
    "weights_sha256": "the checkpoint's weights",
    "input": "--input",
    "statistics": "--normalize",
    "data.split": "the split of the data",
    "data": "the data",
}

Line = dict[str, Any]


class Journal:
    """An open journal; each line is on the disk before the search goes on."""

    def __init__(self, file: FileIO, lines: dict[int, Line]) -> None:
        self._file, self.lines = file, lines

    def add(self, line: Line) -> None:
        """Record a candidate."""
        _write(self._file, line)
        self.lines[line["candidate"]] = line


def history_of(ranking: Path) -> Path:
    """The journal beside a ranking: `NAME.history.jsonl`."""
    return ranking.with_suffix(".history.jsonl")


def read_header(path: Path) -> Line | None:
    """What a journal says was searched; None if it does not exist or says nothing yet."""
    try:
        with path.open("rb", buffering=0) as file:
            return _read(path, file)[0]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(f"{path} cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def journal(path: Path, header: Line, resume: bool, force: bool = False) -> Iterator[Journal]:
    """Open a journal: a new one, or one of the same search to go on with."""
    header = {"format": FORMAT, "version": VERSION, **header}
    try:
        file = path.open("r+b" if path.exists() else "x+b", buffering=0)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
    with file:
        _lock(file, path)
        if not resume and not force and path.stat().st_size:
            raise OutputError(f"{path} is in the way: another search has begun there meanwhile")
        found, lines, end = _read(path, file) if resume else (None, {}, 0)
        if found is not None:
            _agree(path, found, json.loads(json.dumps(header)))
        file.seek(end)
        file.truncate()  # a line that was being written when the search was killed
        if found is None:
            _write(file, header)
        yield Journal(file, lines)


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


def _lock(file: FileIO, path: Path) -> None:
    """Two searches must not write one journal; the lock goes with the process."""
    try:
        import fcntl
    except ImportError:  # Windows: an open file there cannot be replaced anyway
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise SearchError(
            f"another legr learn is writing {path}: wait for it, or stop it"
        ) from None


def _read(path: Path, file: FileIO) -> tuple[Line | None, dict[int, Line], int]:
    """Header, lines by candidate, and where the last whole line ends."""
    *whole, torn = file.read().split(b"\n")  # torn: nothing, or half a line
    found = [_parsed(path, number, raw) for number, raw in enumerate(whole, 1)]
    begins = b'{"format": "' + FORMAT.encode()
    if not found and torn[: len(begins)] == begins[: len(torn)]:
        return None, {}, 0
    if not found or not _is_header(found[0]):
        raise SearchError(f"{path} is no history that this legr reads: --force starts a new one")
    header, lines = found[0], {}
    for number, line in enumerate(found[1:], 2):
        if not _is_sound(line, header["settings"]) or line["candidate"] in lines:
            raise SearchError(f"{path}, line {number} is damaged: --force starts a new search")
        lines[line["candidate"]] = line
    return header, lines, sum(len(raw) + 1 for raw in whole)


def _is_header(line: Line) -> bool:
    """Whether a first line is one of ours."""
    dense = line.get("dense", {"accuracy": 0, "loss": None, "images": 1})
    return (
        line.get("format") == FORMAT
        and line.get("version") == VERSION
        and isinstance(line.get("settings"), dict)
        and isinstance(dense, dict)
        and _is_share(dense.get("accuracy"))
        and _is_loss(dense.get("loss"))
        and type(dense.get("images")) is int
    )


def _is_sound(line: Line, settings: Line) -> bool:
    """Whether a candidate's line has all that a search reads from it."""
    number = line.get("candidate")
    return (
        type(number) is int
        and 0 <= number < settings.get("candidates", math.inf)
        and _is_share(line.get("accuracy"))
        and _is_loss(line.get("loss"))
        and type(line.get("cached")) is bool
        and isinstance(line.get("flops"), int | None)
        and isinstance(line.get("seconds", 0), int | float)
    )


def _is_share(value: Any) -> bool:
    """Whether this is an accuracy."""
    return isinstance(value, int | float) and 0 <= value <= 1


def _is_loss(value: Any) -> bool:
    """Whether this is a loss, or says that it was no number."""
    return value is None or (isinstance(value, int | float) and abs(value) < math.inf)


def _parsed(path: Path, number: int, raw: bytes) -> Line:
    """One line."""
    try:
        line = json.loads(raw)
        if isinstance(line, dict):
            return line
        reason = "no object"
    except (ValueError, RecursionError) as error:
        reason = first_line(error)
    raise SearchError(
        f"{path}, line {number} is damaged ({reason}): --force starts a new search"
    ) from None


def _agree(path: Path, then: Line, now: Line) -> None:
    """Refuse to go on with another search, and name all that differs."""
    differs = []
    for key in MUST_AGREE:
        old: Any = then.get(key)
        new: Any = now.get(key)
        if old == new:
            continue
        if key == "settings" and isinstance(old, dict):
            differs += [
                f"{option(name)} was {old.get(name)}, is {value}"
                for name, value in new.items()
                if old.get(name) != value
            ]
        elif key == "data" and isinstance(old, dict) and {**old, "split": 0} == {**new, "split": 0}:
            differs.append(f"{_WORDS['data.split']} is another")
        elif key == "weights_sha256" or isinstance(new, dict):
            differs.append(f"{_WORDS[key]} are others")
        else:
            differs.append(f"{_WORDS[key]} was {old}, is {new}")
    if differs:
        raise SearchError(
            f"{path} is of another search: {'; '.join(differs)}. Resume with what it was begun "
            "with, or begin anew with --force"
        )
