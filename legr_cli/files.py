"""Atomic output: files are written under temporary names and renamed once all are complete."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from legr_cli.arguments import as_path
from legr_cli.errors import OutputError, SettingError


class Staged:
    """Files being written under temporary names until all of them are complete."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Path, Path]] = []
        self.folders: list[Path] = []

    def folder(self, path: Path) -> None:
        """Create a folder if it does not exist; it is removed again on failure."""
        if not path.is_dir():
            path.mkdir()
            self.folders.append(path)

    def file(self, path: Path) -> Path:
        """Create a temporary file next to `path` that will replace it; return its name."""
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
        self.pairs.append((Path(name), path))
        return Path(name)


@contextlib.contextmanager
def staged() -> Iterator[Staged]:
    """Collect output files; on exit all of them are moved into place, on failure none."""
    stage, where = Staged(), None
    try:
        yield stage
        for temporary, where in stage.pairs:
            _flush(temporary)
            if where.is_dir():  # check all of them before the first is moved
                raise IsADirectoryError(errno.EISDIR, "a folder of that name already exists")
        for temporary, where in stage.pairs:
            temporary.replace(where)
        stage.folders.clear()
    except OSError as error:
        where = where or (stage.pairs[-1][1] if stage.pairs else error.filename)
        raise OutputError(
            f"cannot write {where}: {error.strerror or error}; nothing was changed"
        ) from error
    finally:
        for temporary, _ in stage.pairs:
            temporary.unlink(missing_ok=True)
        for folder in stage.folders:
            folder.rmdir()


@contextlib.contextmanager
def out_or_temporary(
    out: str | os.PathLike[str] | None, name: str, resume: bool, force: bool
) -> Iterator[Path]:
    """Yield `out` or, if it is None, a temporary file called `name` that is deleted on exit."""
    if out is not None:
        yield as_path(out, "out")
        return
    if resume or force:
        raise OutputError("resume and force need out: the file to resume or overwrite")
    with tempfile.TemporaryDirectory(prefix="legr-") as folder:
        yield Path(folder, name)


def require_folder(out: Path, option: str = "--out") -> None:
    """Raise before any work is done if the folder for a result is missing or read-only."""
    if not out.parent.is_dir():
        raise OutputError(
            f"{option} {out}: the folder {out.parent} does not exist; create it first"
        )
    if not os.access(out.parent, os.W_OK):
        raise OutputError(f"{option} {out}: the folder {out.parent} is not writable")


def is_one_file(out: Path, suffixes: Sequence[str], count: int, what: str) -> bool:
    """Whether `out` names a file for the only result; else it is a folder for several.

    `what` the results are, such as "networks". Raises OutputError if neither can be.
    """
    if out.suffix in suffixes and not out.is_dir():
        if count > 1:
            raise OutputError(
                f"--out {out} is a single file, but there are {count} {what}: name a folder"
            )
        return True
    if out.exists() and not out.is_dir():
        article = "an" if suffixes[0][1:2] in set("aeiou") else "a"
        raise OutputError(f"--out {out} is a file, not a folder: name {article} {suffixes[0]} file")
    return False


def check_folder(out: Path, mark: str) -> None:
    """Raise if `out` cannot be a working folder: new, empty, or with the file `mark` in it."""
    require_folder(out)
    if out.exists() and not out.is_dir():
        raise OutputError(f"--out {out} is a file: name a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / mark).exists():
        raise OutputError(f"--out {out} contains other files: choose a new folder")


def check_resume(resume: bool, force: bool) -> None:
    """Raise if a run is asked to resume and to start over."""
    if resume and force:
        raise SettingError("--resume and --force cannot be combined: resume, or start over")


def check_out(out: Path, suffix: str, beside: dict[str, Path], resume: bool, force: bool) -> None:
    """Raise if existing files prevent a resumable run from starting.

    `beside` maps a description ("a network") to each file that the run leaves; the last one is the
    journal that `--resume` continues.
    """
    check_resume(resume, force)
    if out.suffix != suffix or len(os.fsencode(out.name)) > 200 or out.is_dir():
        raise OutputError(f"--out {out}: name a file that ends in {suffix} (200 bytes at most)")
    require_folder(out)
    for what, path in beside.items():
        if path.exists() and not (resume or force):
            raise OutputError(
                f"{path} already exists ({what}): pass --resume to continue an interrupted run, "
                "--force to start over, or choose another --out"
            )
    journal = list(beside.values())[-1]
    if resume and out.exists() and not journal.exists():
        raise OutputError(
            f"cannot resume {out}: {journal.name} is missing; pass --force to start over"
        )


def _flush(path: Path) -> None:
    """Sync a file to disk, with the permissions that the umask gives (mkstemp uses 0600)."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
    with path.open("rb") as file:
        os.fsync(file.fileno())
