"""`legr prune`."""

import contextlib
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legr_cli.commands import options
from legr_cli.commands.invocation import command_line
from legr_cli.errors import OutputError, SettingError

if TYPE_CHECKING:
    from legr_cli.files import Staged
    from legr_cli.pruning import Pruned

_TARGET = "Target"


def prune(
    checkpoint: options.Checkpoint,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE|DIR",
            show_default=False,
            help="Where to write: a .safetensors file for one target, or a folder for several.",
        ),
    ],
    flops: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE",
            show_default=False,
            rich_help_panel=_TARGET,
            help="Share of the FLOPs to keep: a number (0.4), a list (0.3,0.5) or a range "
            "(0.2:0.8:0.1). Can be repeated.",
        ),
    ] = None,
    params: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE",
            show_default=False,
            rich_help_panel=_TARGET,
            help="Share of the parameters to keep, in the same format as --flops.",
        ),
    ] = None,
    latency: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE|MS",
            show_default=False,
            rich_help_panel=_TARGET,
            help="Latency to reach, as a share in the same format as --flops or in milliseconds "
            "(12ms). Measured for one image on one thread, on this machine or with --ssh on a "
            "remote board.",
        ),
    ] = None,
    ranking: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|uniform",
            show_default=False,
            rich_help_panel=options.PRUNING,
            help="Ranking learned by legr learn; uniform prunes every layer by the same share, as "
            "a baseline. Without a ranking, filters are ranked by their squared norm "
            "(α = 1, κ = 0).",
        ),
    ] = None,
    align: options.Align = "auto",
    min_keep: options.MinKeep = 0.1,
    onnx: Annotated[
        bool,
        typer.Option("--onnx", help="Also export each network to ONNX and compare it with torch."),
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            callback=options.within("--batch", 1, 65_536),
            show_default="dynamic",
            help="Fixed batch size of the exported ONNX networks.",
        ),
    ] = None,
    ssh: options.Ssh = None,
    python: options.Python = "python3",
    arch: options.Arch = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Prune a network to one or more targets: offline, without data, in seconds.

    FLOPs are counted by fvcore (one multiply-add counts as one) and never exceed the target. Each
    pruned network is verified: its output must match that of the dense network with the removed
    channels masked.

    Examples:

      legr prune torchvision:resnet50 --flops 0.5 --out resnet50-half.safetensors

      legr prune resnet56.th --arch resnet56 --flops 0.2:0.8:0.1 --ranking ranking.json --out nets

      legr prune torchvision:mobilenet_v2 --latency 0.5 --out fast.safetensors
    """
    from legr_cli.commands.output import spinner
    from legr_cli.commands.prune_view import show_pruned
    from legr_cli.deploy.board import Board, place_for
    from legr_cli.files import staged
    from legr_cli.models.network import open_network
    from legr_cli.pruning import analyze, apply_plans, plans, resolve_ranking
    from legr_cli.settings import Prune, parse_align, parse_input
    from legr_cli.targets import parse_targets

    wanted = (("flops", flops), ("params", params), ("latency", latency))
    targets = [
        t for what, texts in wanted for text in texts or [] for t in parse_targets(what, text)
    ]
    timed = any(target.timed for target in targets)
    size = parse_input(input_shape) if input_shape else None
    if ssh is not None and not timed:
        raise SettingError("--ssh requires a --latency target")
    if batch is not None and not onnx:
        raise SettingError("--batch requires --onnx")
    _check_out(out, checkpoint, len(targets))
    with contextlib.ExitStack() as stack:
        update = stack.enter_context(spinner("starting"))
        board = stack.enter_context(Board(place_for(ssh, python))) if timed else None
        cpu = None if board is None else board.device["kernels"]
        settings = Prune(targets=tuple(targets), align=parse_align(align, cpu), min_keep=min_keep)
        update("loading the network")
        network = open_network(checkpoint, arch, classes, size)
        update("grouping channels into units")
        analysis = analyze(network)
        learned = resolve_ranking(analysis, ranking)
        clock = None
        if board is not None:
            from legr_cli.deploy.plan_timer import PlanTimer

            update("timing plans")
            clock = PlanTimer(board, analysis, update)
        decided = plans(analysis, learned, settings, clock)
        rows, start = [], time.perf_counter()
        update(f"pruning {len(decided)} networks")
        with staged() as files:
            for pruned in apply_plans(analysis, learned, settings, decided, clock):
                rows.append(_write(files, pruned, _path(files, out, pruned), onnx, batch))
                rows[-1]["seconds"] = round(time.perf_counter() - start, 3)
                start = time.perf_counter()
                update(f"{len(rows)} of {len(decided)} networks pruned")
                del pruned  # frees its memory for the next one
    show_pruned(analysis, settings, learned, rows, as_json)


def _check_out(out: Path, checkpoint: str, targets: int) -> None:
    """Check --out before any work is done."""
    from legr_cli.files import require_folder

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


def _path(files: "Staged", out: Path, pruned: "Pruned") -> Path:
    """`--out` itself, or a file in that folder."""
    if out.suffix == ".safetensors" and not out.is_dir():
        return out
    files.folder(out)
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "-", str(pruned.network.arch))
    return out / f"{name}-{pruned.target.label}.safetensors"


def _write(
    files: "Staged", pruned: "Pruned", path: Path, onnx: bool, batch: int | None
) -> dict[str, Any]:
    """Save one network; returns its row of the results."""
    from legr_cli.deploy.export import OPSET, export
    from legr_cli.models.card import with_command
    from legr_cli.models.network import write_network

    temporary = files.file(path)
    network = replace(pruned.network, notes=with_command(pruned.network.notes, command_line()))
    write_network(network, temporary)
    row = {
        "file": str(path),
        "target": {pruned.target.what: pruned.target.value},
        "flops": pruned.flops,
        "params": pruned.params,
        "bytes": temporary.stat().st_size,
        "difference": pruned.difference,
        "layers": {name: list(width) for name, width in pruned.widths.items()},
    }
    if pruned.timing is not None:
        row["latency"] = asdict(pruned.timing)
    if onnx:
        graph = path.with_suffix(".onnx")
        difference = export(pruned.network, files.file(graph), batch)
        row["onnx"] = {"file": str(graph), "difference": difference, "opset": OPSET}
    return row
