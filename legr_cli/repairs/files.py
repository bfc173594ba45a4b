"""`legr repair`: pruned networks in files → repaired networks in files."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from legr_cli.errors import LegrError, OutputError
from legr_cli.files import is_one_file, require_folder, staged
from legr_cli.models.card import with_command
from legr_cli.models.network import Network, write_network
from legr_cli.progress import Report, Status, silent
from legr_cli.repairs.pictures import RepairData, choose_pictures
from legr_cli.repairs.repair import RepairResult, check_repairable, repair_network

_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class RepairedFile:
    """A repaired network that was written."""

    file: Path
    result: RepairResult  # its network is not kept in memory


def repair_files(
    names: Sequence[str],
    opened: Callable[[str], Network],
    dense: Callable[[Network], Network],
    data: RepairData,
    out: Path,
    *,
    force: bool = False,
    command: str | None = None,
    progress: Report = silent,
) -> list[RepairedFile]:
    """Repair several networks into a folder, or one into a file; all files appear, or none.

    `dense` opens the dense network, given a pruned one that says of which architecture it is.
    """
    files, written = _outputs_for(names, out), list[RepairedFile]()
    with staged() as stage:
        if out not in files:
            stage.folder(out)
        for name, path in zip(names, files, strict=True):
            progress(Status(f"loading {name}"))
            network = opened(name)
            try:
                check_repairable(network, force)
                pictures = partial(choose_pictures, given=data)
                result = repair_network(network, dense(network), pictures, data.settings, progress)
            except LegrError as error:
                raise type(error)(f"{name}: {error}") from error
            written.append(RepairedFile(path, _write(result, stage.file(path), command)))
    return written


def _write(result: RepairResult, temporary: Path, command: str | None) -> RepairResult:
    """Write a network; the result without it."""
    network = result.network
    if command is not None:
        network = replace(network, notes=with_command(network.notes, command))
    write_network(network, temporary)
    return replace(result, network=replace(network, model=None))  # type: ignore[arg-type]


def _outputs_for(names: Sequence[str], out: Path) -> list[Path]:
    """`out` itself for one network, or a file of the same name in that folder for each."""
    require_folder(out)
    single = is_one_file(out, [_SUFFIX], len(names), "networks")
    files = [out] if single else [out / Path(name).name for name in names]
    if twice := [path for path, count in Counter(files).items() if count > 1]:
        raise OutputError(f"two networks are named {twice[0].name}: repair them separately")
    for name, path in zip(names, files, strict=True):
        if path.exists() and Path(name).exists() and path.samefile(name):
            raise OutputError(f"--out {out} would overwrite {name}: choose another")
    return files
