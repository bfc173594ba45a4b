"""`legr prune`: a network and several targets, latencies among them → files."""

import contextlib
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from legr_cli.deploy.board import Board, place_for
from legr_cli.deploy.export import Exported, export_network
from legr_cli.deploy.plan_timer import PlanTimer
from legr_cli.errors import OutputError, SettingError
from legr_cli.files import Staged, require_folder, staged
from legr_cli.models.card import with_command
from legr_cli.models.network import Network, write_network
from legr_cli.progress import Report, Status, silent
from legr_cli.pruning import Analysis, Pruned, analyze, apply_plans, plans, resolve_ranking
from legr_cli.ranking import Ranking
from legr_cli.settings import Prune, parse_align
from legr_cli.targets import Target


@dataclass(frozen=True)
class PrunedFile:
    """A pruned network that was written."""

    file: Path
    pruned: Pruned  # its network is not kept in memory
    bytes: int
    seconds: float
    onnx: Exported | None


@dataclass(frozen=True)
class PrunedFiles:
    """All files of a prune, and how they were made."""

    analysis: Analysis
    settings: Prune
    ranking: Ranking
    files: tuple[PrunedFile, ...]


def prune_files(
    network: Network,
    targets: tuple[Target, ...],
    out: Path,
    *,
    ranking: str | None = None,
    align: str = "auto",
    min_keep: float = 0.1,
    onnx: bool = False,
    batch: int | None = None,
    ssh: str | None = None,
    python: str = "python3",
    command: str | None = None,
    progress: Report = silent,
) -> PrunedFiles:
    """Prune to every target and write the networks; all files appear, or none."""
    timed = any(target.kind.timed for target in targets)
    if ssh is not None and not timed:
        raise SettingError("--ssh requires a --latency target")
    with contextlib.ExitStack() as stack:
        board = stack.enter_context(Board(place_for(ssh, python))) if timed else None
        cpu = None if board is None else board.device["kernels"]
        settings = Prune(targets=targets, align=parse_align(align, cpu), min_keep=min_keep)
        progress(Status("grouping channels into units"))
        analysis = analyze(network)
        resolved = resolve_ranking(analysis, ranking)
        clock = None
        if board is not None:
            progress(Status("timing plans"))
            clock = PlanTimer(board, analysis, lambda text: progress(Status(text)))
        decided = plans(analysis, resolved, settings, clock)
        progress(Status(f"pruning {len(decided)} networks"))
        written, start = list[PrunedFile](), time.perf_counter()
        with staged() as files:
            for pruned in apply_plans(analysis, resolved, settings, decided, clock):
                written.append(_write(files, pruned, out, onnx, batch, command, start))
                start = time.perf_counter()
                progress(Status(f"{len(written)} of {len(decided)} networks pruned"))
                del pruned  # frees its memory for the next one
    return PrunedFiles(analysis, settings, resolved, tuple(written))


def check_out(out: Path, checkpoint: str, targets: int) -> None:
    """Check the output before any work is done."""
    try:
        out.exists()
    except OSError as error:
        raise OutputError(f"--out {str(out)[:40]}…: {error.strerror}") from error
    if out.suffix == ".safetensors" and not out.is_dir():
        if targets > 1:
            raise OutputError(
                f"--out {out} is a single file, but there are {targets} targets: name a folder"
            )
        if out.exists() and Path(checkpoint).exists() and out.samefile(checkpoint):
            raise OutputError(f"--out {out} would overwrite CHECKPOINT: choose another name")
    elif out.exists() and not out.is_dir():
        raise OutputError(f"--out {out} is a file, not a folder: name a .safetensors file")
    elif targets == 1 and not out.is_dir():
        raise OutputError(f"--out {out}: name a .safetensors file or an existing folder")
    require_folder(out)


def _path(files: Staged, out: Path, pruned: Pruned) -> Path:
    """`out` itself, or a file in that folder."""
    if out.suffix == ".safetensors" and not out.is_dir():
        return out
    files.folder(out)
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "-", str(pruned.network.arch))
    return out / f"{name}-{pruned.target.label}.safetensors"


def _write(
    files: Staged,
    pruned: Pruned,
    out: Path,
    onnx: bool,
    batch: int | None,
    command: str | None,
    start: float,
) -> PrunedFile:
    """Write one network, and its ONNX file if asked."""
    path, network = _path(files, out, pruned), pruned.network
    if command is not None:
        network = replace(network, notes=with_command(network.notes, command))
    temporary = files.file(path)
    write_network(network, temporary)
    size, graph = temporary.stat().st_size, path.with_suffix(".onnx")
    exported = export_network(network, graph, files.file(graph), batch) if onnx else None
    light = replace(pruned, network=replace(network, model=None))  # type: ignore[arg-type]
    return PrunedFile(path, light, size, round(time.perf_counter() - start, 3), exported)
