"""Output of `legr inspect`: layers, units and pinned channels, as a table or JSON."""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from legr_cli.commands import output
from legr_cli.shapes import shapes_json, shapes_text

if TYPE_CHECKING:
    from legr_cli.channels.units import Pin
    from legr_cli.pruning import NetworkSummary


def show_archs() -> None:
    """Print all names that --arch accepts, one per line."""
    from legr_cli.models.registry import known_names

    for name in known_names():
        output.print_result(name)


def show_summary(summary: "NetworkSummary", as_json: bool) -> None:
    """Print what can be pruned, as a table or JSON."""
    if as_json:
        output.print_json(_as_json(summary))
    else:
        _show_table(summary)


def _as_json(summary: "NetworkSummary") -> dict[str, Any]:
    """The summary as JSON data."""
    facts = dataclasses.asdict(summary)
    facts["input"] = shapes_json(facts.pop("input_shape"))
    for layer in facts["layers"]:
        layer["groups"] = list(layer["groups"])
        layer["pinned"] = [
            {"channels": pin["channels"], "by": pin["reason"]} for pin in layer["pinned"]
        ]
    order = ("arch", "input", "flops", "params", "units", "groups", "lowest_flops_share", "layers")
    part = ("module", "whole_flops") if summary.module else ()
    return {key: facts[key] for key in (*order, "pinned", "tied", "other_flops", "sha256", *part)}


def _show_table(summary: "NetworkSummary") -> None:
    """Print a table of layers, and why channels are pinned, to stdout."""
    size = shapes_text(summary.input_shape)
    title = (
        f"{_name(summary)} at {size}: {output.format_count(summary.flops)}FLOPs by fvcore "
        f"(one multiply-add = 1), {output.format_count(summary.params)} parameters, "
        f"{summary.units} units in {summary.groups} groups"
    )
    columns = ("layer", "kind", "filters", "units", "group", "FLOPs", "share", "pinned")
    table = output.table(title, *columns, left=("layer", "kind"))
    for layer in summary.layers:
        table.add_row(
            layer.name,
            layer.kind.replace("depthwise", "dw conv"),
            str(layer.channels),
            str(layer.units),
            _groups(layer.groups),
            output.format_count(layer.flops),
            f"{layer.flops / summary.flops:.1%}",
            str(sum(pin.channels for pin in layer.pinned) or ""),
        )
    other = summary.other_flops
    if other:
        share = f"{other / summary.flops:.1%}"
        table.add_row("all other ops", "", "", "", "", output.format_count(other), share, "")
    screen = output.console(stderr=False)
    output.print_table(screen, table)
    for reason, names in _by_reason(summary.pinned).items():
        screen.print(f"pinned by {reason}: {', '.join(names)}", style="dim")
    for reason, names in _by_reason(summary.tied).items():
        screen.print(f"tied into one unit by {reason}: {', '.join(names)}", style="dim")
    auto, exact = summary.lowest_flops_share.values()
    screen.print(f"lowest target: --flops {auto:g} ({exact:g} with --align 1)", style="dim")


def _name(summary: "NetworkSummary") -> str:
    """The network, and the part of it that is shown."""
    if not summary.module:
        return summary.arch
    whole = summary.whole_flops
    of = "" if whole is None else f", which has {output.format_count(whole)}FLOPs as a whole"
    return f"{summary.module} of {summary.arch}{of},"


def _by_reason(pins: Iterable["Pin"]) -> dict[str, list[str]]:
    """For each reason, the layers it pins and how many channels of each.

    This also names layers that have no rule themselves, and so no row in the table.
    """
    found: dict[str, list[str]] = {}
    for pin in pins:
        found.setdefault(pin.reason, []).append(f"{pin.layer} ({pin.channels})")
    return found


def _groups(groups: tuple[int, ...]) -> str:
    """`7`, or `5 groups` for a layer whose channels are in several."""
    return f"{len(groups)} groups" if len(groups) > 1 else "".join(map(str, groups))
