"""Prune a network to several targets, latencies included, repair the results and write them."""

import contextlib
import re
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from legr_cli.deploy.board import Board, place_for
from legr_cli.deploy.export import Exported, export_network
from legr_cli.deploy.plan_timer import PlanTimer
from legr_cli.errors import OutputError, SettingError
from legr_cli.files import Staged, is_one_file, require_folder, staged
from legr_cli.models.card import with_command
from legr_cli.models.network import Network, write_network
from legr_cli.progress import Report, Status, silent
from legr_cli.pruning import Analysis, Pruned, analyze, apply_plans, plans, resolve_ranking
from legr_cli.ranking import Ranking
from legr_cli.repairs.pictures import RepairData, choose_pictures
from legr_cli.repairs.repair import RepairResult, repair_network
from legr_cli.settings import LayerShares, Prune, parse_align
from legr_cli.targets import Target


@dataclass(frozen=True)
class PrunedFile:
    """A pruned network that was written to a file."""

    file: Path
    pruned: Pruned  # without the module, to free its memory
    bytes: int
    seconds: float
    onnx: Exported | None
    repair: RepairResult | None = None  # without the module as well


@dataclass(frozen=True)
class PrunedFiles:
    """The files that one call wrote, and how they were made."""

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
    min_keep: tuple[float, LayerShares] = (0.1, ()),
    repair: RepairData | None = None,
    onnx: bool = False,
    batch: int | None = None,
    ssh: str | None = None,
    python: str = "python3",
    command: str | None = None,
    progress: Report = silent,
) -> PrunedFiles:
    """Prune to every target, repair and write the networks; on failure, nothing is written."""
    timed = any(target.kind.timed for target in targets)
    if batch is not None and not onnx:
        raise SettingError("--batch requires --onnx")
    if ssh is not None and not timed:
        raise SettingError("--ssh requires a --latency target")
    if repair is not None and network.kept is not None:
        raise SettingError(
            "--repair needs the dense network, and this one was already pruned: prune without it, "
            "then legr repair FILE --dense CHECKPOINT"
        )
    with contextlib.ExitStack() as stack:
        board = stack.enter_context(Board(place_for(ssh, python))) if timed else None
        cpu = None if board is None else board.device["kernels"]
        settings = Prune(
            targets=targets,
            align=parse_align(align, cpu),
            min_keep=min_keep[0],
            min_keep_layers=min_keep[1],
        )
        progress(Status("grouping channels into units"))
        analysis = analyze(network)
        resolved = resolve_ranking(analysis, ranking)
        clock = None
        if board is not None:
            progress(Status("timing plans"))
            clock = PlanTimer(board, analysis, lambda text: progress(Status(text)))
        chosen = plans(analysis, resolved, settings, clock)
        progress(Status(f"pruning {len(chosen)} networks"))
        written, start = list[PrunedFile](), time.perf_counter()
        with staged() as files:
            for pruned in apply_plans(analysis, resolved, settings, chosen, clock):
                result = None
                if repair is not None and pruned.flops < analysis.flops:
                    result = _repaired(pruned, network, repair, progress)
                written.append(_write(files, pruned, result, out, onnx, batch, command, start))
                start = time.perf_counter()
                progress(Status(f"{len(written)} of {len(chosen)} networks pruned"))
                del pruned, result  # free their memory before the next network
    return PrunedFiles(analysis, settings, resolved, tuple(written))


def check_out(out: Path, checkpoint: str, targets: int) -> None:
    """Raise before any work is done if `out` cannot hold the results."""
    try:
        out.exists()
    except OSError as error:
        raise OutputError(f"--out {str(out)[:40]}…: {error.strerror}") from error
    if is_one_file(out, [".safetensors"], targets, "targets"):
        if out.exists() and Path(checkpoint).exists() and out.samefile(checkpoint):
            raise OutputError(f"--out {out} would overwrite CHECKPOINT: choose another name")
    elif targets == 1 and not out.is_dir():
        raise OutputError(f"--out {out}: name a .safetensors file or an existing folder")
    require_folder(out)


def _repaired(pruned: Pruned, dense: Network, repair: RepairData, progress: Report) -> RepairResult:
    """Repair a network that was just pruned, as `legr repair` does with its file."""
    pictures = partial(choose_pictures, given=repair)
    return repair_network(pruned.network, dense, pictures, repair.settings, progress)


def _path(files: Staged, out: Path, pruned: Pruned) -> Path:
    """The file to write: `out` itself, or one in the folder `out`."""
    if out.suffix == ".safetensors" and not out.is_dir():
        return out
    files.folder(out)
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "-", str(pruned.network.arch))
    return out / f"{name}-{pruned.target.label}.safetensors"


def _write(
    files: Staged,
    pruned: Pruned,
    repair: RepairResult | None,
    out: Path,
    onnx: bool,
    batch: int | None,
    command: str | None,
    start: float,
) -> PrunedFile:
    """Write one network and, if `onnx`, its ONNX file."""
    path, network = _path(files, out, pruned), (repair or pruned).network
    if command is not None:
        network = replace(network, notes=with_command(network.notes, command))
    temporary = files.file(path)
    write_network(network, temporary)
    size, onnx_path = temporary.stat().st_size, path.with_suffix(".onnx")
    exported = export_network(network, onnx_path, files.file(onnx_path), batch) if onnx else None
    bare = replace(network, model=None)  # type: ignore[arg-type]
    record = None if repair is None else replace(repair, network=bare)
    seconds = round(time.perf_counter() - start, 3)
    return PrunedFile(path, replace(pruned, network=bare), size, seconds, exported, record)
