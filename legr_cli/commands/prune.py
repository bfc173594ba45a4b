"""`legr prune`."""

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legr_cli import __version__
from legr_cli.commands import options
from legr_cli.errors import OutputError

if TYPE_CHECKING:
    from legr_cli.files import Staged
    from legr_cli.pruning import Pruned, Study
    from legr_cli.ranking import Ranking
    from legr_cli.settings import Prune

_TARGET = "The target"


def prune(
    checkpoint: options.Checkpoint,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE|DIR",
            show_default=False,
            help="A .safetensors file for one target, a folder for several.",
        ),
    ],
    flops: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE",
            show_default=False,
            rich_help_panel=_TARGET,
            help="FLOPs to keep, as a share of the dense network's: 0.4, 0.3,0.5 or a range "
            "0.2:0.8:0.1. May be given several times.",
        ),
    ] = None,
    params: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE",
            show_default=False,
            rich_help_panel=_TARGET,
            help="Parameters to keep, in the same form.",
        ),
    ] = None,
    ranking: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            rich_help_panel=options.HOW,
            help="A ranking.json with (α, κ) by layer. Without it α = 1, κ = 0: plain norms.",
        ),
    ] = None,
    align: options.Align = "auto",
    min_keep: options.MinKeep = 0.1,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write an .onnx beside each file, checked against torch.")
    ] = False,
    arch: options.Arch = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Write a smaller network for every target: offline, without data, in seconds.

    FLOPs are counted by fvcore (one multiply-add is one) and never pass the target. Every file is
    checked: it must agree with the dense network whose removed channels are silenced.

    Examples:

      legr prune torchvision:resnet50 --flops 0.5 --out resnet50-half.safetensors

      legr prune resnet56.th --arch resnet56 --flops 0.2:0.8:0.1 --ranking ranking.json --out nets
    """
    from legr_cli.commands.show import console
    from legr_cli.files import staged
    from legr_cli.networks import open_network
    from legr_cli.pruning import carry_out, plans, ranking_for, study
    from legr_cli.settings import Prune, parse_align, parse_input, parse_targets

    wanted = [("flops", text) for text in flops or []] + [("params", text) for text in params or []]
    settings = Prune(
        targets=tuple(t for what, text in wanted for t in parse_targets(what, text)),
        align=parse_align(align),
        min_keep=min_keep,
    )
    size = parse_input(input_shape) if input_shape else None
    _check_out(out, checkpoint, len(settings.targets))
    with console().status("reading the network") as status:
        network = open_network(checkpoint, arch, classes, size)
        status.update("tying channels into units")
        known = study(network)
        learned = ranking_for(known, ranking)
        decided = plans(known, learned, settings)
        rows, start = [], time.perf_counter()
        status.update(f"cutting {len(decided)} networks")
        with staged() as files:
            for pruned in carry_out(known, learned, settings, decided):
                rows.append(_write(files, pruned, _path(files, out, pruned), onnx))
                rows[-1]["seconds"] = round(time.perf_counter() - start, 3)
                start = time.perf_counter()
                status.update(f"{len(rows)} of {len(decided)} networks are cut")
                del pruned  # its memory is wanted for the next one
    _show(known, settings, learned, rows, as_json)


def _check_out(out: Path, checkpoint: str, targets: int) -> None:
    """Say what is wrong with --out before any work is done."""
    from legr_cli.files import require_folder

    try:
        out.exists()
    except OSError as error:
        raise OutputError(f"--out {str(out)[:40]}…: {error.strerror}") from error
    if out.suffix == ".safetensors" and not out.is_dir():
        if targets > 1:
            raise OutputError(
                f"--out {out} is one file, and there are {targets} targets: name a folder"
            )
        if out.exists() and Path(checkpoint).exists() and out.samefile(checkpoint):
            raise OutputError(f"--out {out} is the CHECKPOINT itself: choose another name")
    elif out.exists() and not out.is_dir():
        raise OutputError(f"--out {out} is a file, not a folder: name a .safetensors file")
    elif targets == 1 and not out.is_dir():
        raise OutputError(f"--out {out}: name a .safetensors file, or a folder that exists")
    require_folder(out)


def _path(files: "Staged", out: Path, pruned: "Pruned") -> Path:
    """`--out` itself, or a name in that folder."""
    if out.suffix == ".safetensors" and not out.is_dir():
        return out
    files.folder(out)
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "-", str(pruned.network.arch))
    return out / f"{name}-{pruned.target.label}.safetensors"


def _write(files: "Staged", pruned: "Pruned", path: Path, onnx: bool) -> dict[str, Any]:
    """Save one network, and note what it came to."""
    from legr_cli.deploy.onnx import export
    from legr_cli.networks import save_network

    temporary = files.file(path)
    save_network(pruned.network, temporary)
    row = {
        "file": str(path),
        "target": {pruned.target.what: pruned.target.share},
        "flops": pruned.flops,
        "params": pruned.params,
        "bytes": temporary.stat().st_size,
        "difference": pruned.difference,
        "layers": {name: list(width) for name, width in pruned.widths.items()},
    }
    if onnx:
        graph = path.with_suffix(".onnx")
        difference = export(pruned.network.model, pruned.network.input_shape, files.file(graph))
        row["onnx"] = {"file": str(graph), "difference": difference}
    return row


def _show(
    known: "Study", settings: "Prune", ranking: "Ranking", rows: list[dict[str, Any]], as_json: bool
) -> None:
    """The table on stderr and the files on stdout, or everything as JSON."""
    from legr_cli.commands import show

    for row in rows:
        row["flops_share"] = row["flops"] / known.flops
        row["params_share"] = row["params"] / known.params
    notes = _notes(known, settings, ranking, rows)
    if as_json:
        whole = {
            "arch": str(known.network.arch),
            "input": list(known.network.input_shape),
            "flops": known.flops,
            "params": known.params,
            "sha256": known.sha256,
        }
        show.emit(
            {
                "legr": __version__,
                "dense": whole,
                "align": str(settings.align),
                "notes": notes,
                "pruned": rows,
            }
        )
        return
    size = "x".join(map(str, known.network.input_shape))
    dense = f"{show.count(known.flops)}FLOPs, {show.count(known.params)} parameters"
    screen = show.console()
    columns = ("target", "FLOPs", "share", "params", "share", "file", "s", "kept by layer")
    table = show.table(f"{known.network.arch} on {size}: {dense}", *columns, left=columns[-1:])
    for row in rows:
        [(what, share)] = row["target"].items()
        table.add_row(
            f"{what} {share:.1%}",
            show.count(row["flops"]),
            f"{row['flops_share']:.2%}",
            show.count(row["params"]),
            f"{row['params_share']:.1%}",
            f"{show.count(row['bytes'])}B",
            f"{row['seconds']:.1f}",
            show.bar([kept / of for kept, of in row["layers"].values()], screen.width - 60),
        )
    screen.print(table)
    for note in notes:
        screen.print(note, style="dim")
    for row in rows:
        show.line(row["file"])
        if "onnx" in row:
            show.line(row["onnx"]["file"])


def _notes(
    known: "Study", settings: "Prune", ranking: "Ranking", rows: list[dict[str, Any]]
) -> list[str]:
    """What a user should know of how the networks came about."""
    notes = ["FLOPs by fvcore, one multiply-add = 1", f"align {settings.align}"]
    if not ranking.notes:
        notes.append("no --ranking: α = 1, κ = 0, filters ranked by plain squared norm")
    elif ranking.notes.get("weights_sha256") not in (None, known.sha256):
        notes.append("the ranking was learned on other weights than these")
    notes += _unlike(known, settings, ranking.notes)
    gap = max(share - row[f"{what}_share"] for row in rows for what, share in row["target"].items())
    if gap > 0.01:
        notes.append(
            f"whole blocks of channels end up to {gap:.1%} under the target; --align 1 fits"
        )
    if known.network.kept is not None:
        notes.append("the network was pruned before: shares are of what it is now")
    held = {pin.layer for pin in known.units.pins if pin.reason != "the network's output"}
    if held:
        notes.append(f"{len(held)} layers have pinned channels: legr inspect says by what")
    return notes


def _unlike(known: "Study", settings: "Prune", learned: dict[str, Any]) -> list[str]:
    """Where the cut is not the one that the ranking was learned with."""
    from legr_cli.settings import option

    then, size = learned.get("settings"), list(known.network.input_shape)
    then = {**(then if isinstance(then, dict) else {}), "input": learned.get("input", size)}
    now = {"align": settings.align.name, "min_keep": settings.min_keep, "input": size}
    return [
        f"the ranking was learned with {option(key)} {then[key]}, this is {value}"
        for key, value in now.items()
        if then.get(key, value) != value
    ]
