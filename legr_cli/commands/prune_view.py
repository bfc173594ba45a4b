"""Output of `legr prune`: a table of networks with notes, or JSON."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from legr_cli.commands import output
from legr_cli.commands.export_view import verification_note
from legr_cli.commands.repair_view import repair_json
from legr_cli.shapes import shapes_json, shapes_text
from legr_cli.version import __version__

if TYPE_CHECKING:
    from legr_cli.deploy.prune_files import PrunedFile, PrunedFiles
    from legr_cli.pruning import Analysis
    from legr_cli.settings import Prune

_SEVERAL = ("these networks are", "them")


def show_pruned(result: "PrunedFiles", as_json: bool) -> None:
    """Print a table and notes to stderr and the files to stdout, or everything as JSON."""
    notes = _notes(result)
    if as_json:
        output.print_json(_as_json(result, notes))
        return
    output.print_table(output.console(), _table(result))
    output.print_notes(*notes)
    for written in result.files:
        output.print_result(written.file)
        if written.onnx is not None:
            output.print_result(written.onnx.file)


def _shares(result: "PrunedFiles", written: "PrunedFile") -> dict[str, float]:
    """Shares of the dense network's FLOPs and parameters."""
    dense, pruned = result.analysis, written.pruned
    return {"flops": pruned.flops / dense.flops, "params": pruned.params / dense.params}


def _as_json(result: "PrunedFiles", notes: list[str]) -> dict[str, Any]:
    """The result as JSON data."""
    analysis = result.analysis
    dense = {
        "arch": str(analysis.network.arch),
        "input": shapes_json(analysis.network.input_shape),
        "flops": analysis.flops,
        "params": analysis.params,
        "sha256": analysis.sha256,
    }
    rows = [_row(result, written) for written in result.files]
    return {
        "legr": __version__,
        "dense": dense,
        "align": str(result.settings.align),
        "notes": notes,
        "pruned": rows,
    }


def _row(result: "PrunedFiles", written: "PrunedFile") -> dict[str, Any]:
    """One network as JSON data."""
    pruned = written.pruned
    row: dict[str, Any] = {
        "file": str(written.file),
        "target": {pruned.target.what: pruned.target.value},
        "flops": pruned.flops,
        "params": pruned.params,
        "bytes": written.bytes,
        "difference": pruned.difference,
        "layers": {name: list(width) for name, width in pruned.widths.items()},
    }
    if pruned.timing is not None:
        row["latency"] = asdict(pruned.timing)
    if (onnx := written.onnx) is not None:
        row["onnx"] = {"file": str(onnx.file), "difference": onnx.difference, "opset": onnx.opset}
    if (repair := written.repair) is not None:
        row["repair"] = repair_json(repair)
    row["seconds"] = written.seconds
    return row | {f"{what}_share": share for what, share in _shares(result, written).items()}


def _table(result: "PrunedFiles") -> Any:
    """One row per network."""
    network, screen = result.analysis.network, output.console()
    size = shapes_text(network.input_shape)
    flops = output.format_count(result.analysis.flops)
    params = output.format_count(result.analysis.params)
    timed = any(written.pruned.timing is not None for written in result.files)
    more = ("ms", "share") if timed else ()
    columns = ("target", "FLOPs", "share", "params", "share", "size", "s", *more, "kept by layer")
    title = f"{network.arch} on {size}: {flops}FLOPs, {params} parameters"
    table = output.table(title, *columns, left=columns[-1:])
    for written in result.files:
        pruned, shares = written.pruned, _shares(result, written)
        kept = [kept / before for kept, before in pruned.widths.values()]
        timing = pruned.timing
        measured = ("", "") if timing is None else (f"{timing.ms:.3g}", f"{timing.ratio:.1%}")
        table.add_row(
            str(pruned.target),
            output.format_count(pruned.flops),
            f"{shares['flops']:.2%}",
            output.format_count(pruned.params),
            f"{shares['params']:.1%}",
            f"{output.format_count(written.bytes)}B",
            f"{written.seconds:.1f}",
            *(measured if timed else ()),
            output.sparkline(kept, screen.width - 60),
        )
    return table


def _notes(result: "PrunedFiles") -> list[str]:
    """Notes on how the networks were made."""
    analysis, settings = result.analysis, result.settings
    notes = ["FLOPs by fvcore, one multiply-add = 1", f"align {settings.align}"]
    notes += [*_ranking_notes(result), *_setting_notes(analysis, settings, result.ranking.notes)]
    reached = [(written.pruned.target, _shares(result, written)) for written in result.files]
    gaps = [t.value - shares[t.what] for t, shares in reached if t.what in shares]
    if gaps and max(gaps) > 0.01:
        notes.append(
            f"alignment leaves up to {max(gaps):.1%} below the target; --align 1 comes closer"
        )
    notes += _latency_notes(result)
    exported = [written.onnx for written in result.files if written.onnx is not None]
    if exported:
        notes.append(verification_note(exported))
    notes += _repair_notes(result)
    if analysis.network.kept is not None:
        notes.append("this network was already pruned: shares refer to its current size")
    held = {pin.layer for pin in analysis.units.pins if pin.reason != "the network's output"}
    if held:
        layers = "1 layer has" if len(held) == 1 else f"{len(held)} layers have"
        notes.append(f"{layers} pinned channels: legr inspect shows why")
    return notes


def _repair_notes(result: "PrunedFiles") -> list[str]:
    """What the repair was worth, or how to repair."""
    notes = []
    for written in result.files:
        if (repair := written.repair) is not None:
            verdict = "repaired" if repair.helped else "not repaired"
            notes.append(
                f"{written.pruned.target}: {verdict} with {repair.images} images; divergence from "
                f"the dense network on those held out: {repair.before:.4g} → {repair.after:.4g}"
            )
    smaller = (written.pruned.flops < result.analysis.flops for written in result.files)
    if not notes and any(smaller):
        which, them = ("this network is", "it") if len(result.files) == 1 else _SEVERAL
        exported = any(written.onnx is not None for written in result.files)
        how = "legr prune --repair SPEC" if exported else "legr repair"
        notes.append(f"{which} not repaired: {how} makes {them} usable at once, without labels")
    return notes


def _ranking_notes(result: "PrunedFiles") -> list[str]:
    """How filters were ranked."""
    from legr_cli.cut import UNLEARNED

    ranking = result.ranking
    if ranking.method in UNLEARNED:
        return [UNLEARNED[ranking.method].note]
    if ranking.notes.get("weights_sha256") not in (None, result.analysis.sha256):
        return ["the ranking was learned on different weights"]
    return []


def _latency_notes(result: "PrunedFiles") -> list[str]:
    """Notes on measured latencies, and on any that end up far below the target."""
    notes, short = [], False
    for written in result.files:
        timing, target = written.pruned.timing, written.pruned.target
        if timing is None:
            continue
        notes.append(
            f"measured on {timing.device} with 1 thread: {timing.ms:.3g} ms, dense "
            f"{timing.dense_ms:.3g} ms; {timing.ratio:.1%} of the dense latency when run in turns"
        )
        short |= target.kind.is_share and 1 - timing.ratio / target.value > 0.05
    if short:
        notes.append("no plan comes closer to the target latency; --align 1 may")
    return notes


def _setting_notes(analysis: "Analysis", settings: "Prune", learned: dict[str, Any]) -> list[str]:
    """Notes on settings that differ from those the ranking was learned with."""
    then, size = learned.get("settings"), shapes_json(analysis.network.input_shape)
    # nothing was learned without settings; those of earlier versions lack min_keep_layers
    then = {"min_keep_layers": {}, **then} if isinstance(then, dict) else {}
    then = {**then, "input": learned.get("input", size)}
    now = {
        "align": settings.align.name,
        "min_keep": settings.min_keep,
        "min_keep_layers": dict(settings.min_keep_layers),
        "input": size,
    }
    return [
        f"the ranking was learned with {_setting(key)} {_shown(then[key])}, "
        f"but this is {_shown(value)}"
        for key, value in now.items()
        if then.get(key, value) != value
    ]


def _setting(key: str) -> str:
    """The option that sets a setting."""
    from legr_cli.arguments import option

    return option(key.removesuffix("_layers"))


def _shown(value: Any) -> str:
    """A setting as it is typed."""
    if isinstance(value, dict):
        return " ".join(f"{pattern}={share:g}" for pattern, share in value.items()) or "none"
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)
