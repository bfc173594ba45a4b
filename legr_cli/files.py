"""Files are replaced whole: written beside their place, then renamed, all of a result or none."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from legr_cli.errors import OutputError, SettingError


class Staged:
    """Files being written under other names until all of them are complete."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Path, Path]] = []
        self.folders: list[Path] = []

    def folder(self, path: Path) -> None:
        """Make a folder, unless it is there; it goes again if anything fails."""
        if not path.is_dir():
            path.mkdir()
            self.folders.append(path)

    def file(self, path: Path) -> Path:
        """A temporary name in the folder of `path`, which will take its place."""
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
        self.pairs.append((Path(name), path))
        return Path(name)


@contextlib.contextmanager
def staged() -> Iterator[Staged]:
    """Collect files; all are put in place at the end, none if anything fails."""
    stage, where = Staged(), None
    try:
        yield stage
        for temporary, where in stage.pairs:
            _settle(temporary)
            if where.is_dir():  # all are looked at before the first takes its place
                raise IsADirectoryError(errno.EISDIR, "a folder of that name is in the way")
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


def require_folder(out: Path, option: str = "--out") -> None:
    """Say that there is no place for a result before any work is done."""
    if not out.parent.is_dir():
        raise OutputError(
            f"{option} {out}: the folder {out.parent} does not exist; create it first"
        )
    if not os.access(out.parent, os.W_OK):
        raise OutputError(f"{option} {out}: the folder {out.parent} cannot be written to")


def check_folder(out: Path, mark: str) -> None:
    """Say what is wrong with a folder to work in; `mark` is a file that such a folder has."""
    require_folder(out)
    if out.exists() and not out.is_dir():
        raise OutputError(f"--out {out} is a file: name a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / mark).exists():
        raise OutputError(f"--out {out} has other things in it: name a new folder")


def check_out(out: Path, suffix: str, beside: dict[str, Path], resume: bool, force: bool) -> None:
    """Say what is in the way of work that can be resumed; `beside`: what it leaves, by its name.

    The last of them is what work goes on with.
    """
    if resume and force:
        raise SettingError("--resume goes on, --force begins anew: choose one")
    if out.suffix != suffix or len(os.fsencode(out.name)) > 200 or out.is_dir():
        raise OutputError(f"--out {out}: name a file that ends in {suffix} (200 bytes at most)")
    require_folder(out)
    for what, path in beside.items():
        if path.exists() and not (resume or force):
            raise OutputError(
                f"{path} is in the way, {what}: --resume goes on with it if it was stopped, "
                "--force begins anew, or choose another --out"
            )
    record = list(beside.values())[-1]
    if resume and out.exists() and not record.exists():
        raise OutputError(
            f"{out} has no {record.name} beside it to go on with: --force begins anew"
        )


def _settle(path: Path) -> None:
    """Give a file the usual permissions and see it on the disk."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
    with path.open("rb") as file:
        os.fsync(file.fileno())
