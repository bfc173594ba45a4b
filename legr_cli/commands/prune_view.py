"""Pruned networks as people see them: a table, notes and files, or JSON."""

from typing import TYPE_CHECKING, Any

from legr_cli.commands import output
from legr_cli.version import __version__

if TYPE_CHECKING:
    from legr_cli.pruning import Analysis
    from legr_cli.ranking import Ranking
    from legr_cli.settings import Prune


def show_pruned(
    analysis: "Analysis",
    settings: "Prune",
    ranking: "Ranking",
    rows: list[dict[str, Any]],
    as_json: bool,
) -> None:
    """The table on stderr and the files on stdout, or everything as JSON."""
    for row in rows:
        row["flops_share"] = row["flops"] / analysis.flops
        row["params_share"] = row["params"] / analysis.params
    notes = _notes(analysis, settings, ranking, rows)
    if as_json:
        whole = {
            "arch": str(analysis.network.arch),
            "input": list(analysis.network.input_shape),
            "flops": analysis.flops,
            "params": analysis.params,
            "sha256": analysis.sha256,
        }
        output.print_json(
            {
                "legr": __version__,
                "dense": whole,
                "align": str(settings.align),
                "notes": notes,
                "pruned": rows,
            }
        )
        return
    size = "x".join(map(str, analysis.network.input_shape))
    flops, params = output.format_count(analysis.flops), output.format_count(analysis.params)
    dense = f"{flops}FLOPs, {params} parameters"
    screen = output.console()
    timed = any("latency" in row for row in rows)
    more = ("ms", "share") if timed else ()
    columns = ("target", "FLOPs", "share", "params", "share", "file", "s", *more, "kept by layer")
    table = output.table(f"{analysis.network.arch} on {size}: {dense}", *columns, left=columns[-1:])
    for target, row in zip(settings.targets, rows, strict=True):
        table.add_row(
            str(target),
            output.format_count(row["flops"]),
            f"{row['flops_share']:.2%}",
            output.format_count(row["params"]),
            f"{row['params_share']:.1%}",
            f"{output.format_count(row['bytes'])}B",
            f"{row['seconds']:.1f}",
            *(_latency(row.get("latency")) if timed else ()),
            output.sparkline([kept / of for kept, of in row["layers"].values()], screen.width - 60),
        )
    output.print_table(screen, table)
    for note in notes:
        screen.print(note, style="dim")
    for row in rows:
        output.print_result(row["file"])
        if "onnx" in row:
            output.print_result(row["onnx"]["file"])


def _below(target: float, row: dict[str, Any]) -> float:
    """How far a measured latency is under its target, as a share of it."""
    return 1 - float(row["latency"]["ratio"]) / target


def _latency(timing: dict[str, Any] | None) -> tuple[str, str]:
    """Milliseconds, and their share of the dense network's, where they were measured."""
    return ("", "") if timing is None else (f"{timing['ms']:.3g}", f"{timing['ratio']:.1%}")


def _notes(
    analysis: "Analysis", settings: "Prune", ranking: "Ranking", rows: list[dict[str, Any]]
) -> list[str]:
    """What a user should know of how the networks came about."""
    notes = ["FLOPs by fvcore, one multiply-add = 1", f"align {settings.align}"]
    if ranking.method == "norm":
        notes.append("no --ranking: α = 1, κ = 0, filters ranked by plain squared norm")
    elif ranking.method == "uniform":
        notes.append("uniform: the same share of every layer, by plain squared norm within it")
    elif ranking.notes.get("weights_sha256") not in (None, analysis.sha256):
        notes.append("the ranking was learned on other weights than these")
    notes += _unlike(analysis, settings, ranking.notes)
    pairs = list(zip(settings.targets, rows, strict=True))
    gap = max((t.value - row[f"{t.what}_share"] for t, row in pairs if not t.timed), default=0)
    if gap > 0.01:
        notes.append(
            f"whole blocks of channels end up to {gap:.1%} under the target; --align 1 fits"
        )
    for row in rows:
        if "latency" in row:
            timing = row["latency"]
            notes.append(
                f"measured on {timing['device']}, one thread: {timing['ms']:.3g} ms, "
                f"dense {timing['dense_ms']:.3g} ms, in turns {timing['ratio']:.1%} of it"
            )
    short = [row for t, row in pairs if t.what == "latency" and _below(t.value, row) > 0.05]
    if short:
        notes.append("no widths come closer to the latency from below; --align 1 may")
    exported = [row["onnx"] for row in rows if "onnx" in row]
    if exported:
        worst = max(graph["difference"] for graph in exported)
        notes.append(
            f"ONNX: opset {exported[0]['opset']}, checked, and {worst:.0e} from torch at most"
        )
    if analysis.network.kept is not None:
        notes.append("the network was pruned before: shares are of what it is now")
    held = {pin.layer for pin in analysis.units.pins if pin.reason != "the network's output"}
    if held:
        notes.append(f"{len(held)} layers have pinned channels: legr inspect says by what")
    return notes


def _unlike(analysis: "Analysis", settings: "Prune", learned: dict[str, Any]) -> list[str]:
    """Where the cut is not the one that the ranking was learned with."""
    from legr_cli.settings import option

    then, size = learned.get("settings"), list(analysis.network.input_shape)
    then = {**(then if isinstance(then, dict) else {}), "input": learned.get("input", size)}
    now = {"align": settings.align.name, "min_keep": settings.min_keep, "input": size}
    return [
        f"the ranking was learned with {option(key)} {then[key]}, this is {value}"
        for key, value in now.items()
        if then.get(key, value) != value
    ]
