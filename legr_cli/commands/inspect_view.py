"""Output of `legr inspect`: layers, units and pinned channels, as a table or JSON."""

import dataclasses
from typing import TYPE_CHECKING, Any

from legr_cli.commands import output

if TYPE_CHECKING:
    from legr_cli.pruning import Analysis


def show_archs() -> None:
    """Print all names that --arch accepts, one per line."""
    from legr_cli.models.registry import known_names

    for name in known_names():
        output.print_result(name)


def show_analysis(analysis: "Analysis", as_json: bool) -> None:
    """Print what an analysis found, as a table or JSON."""
    facts = _facts(analysis)
    if as_json:
        output.print_json(facts)
    else:
        _show_table(facts)


def _facts(analysis: "Analysis") -> dict[str, Any]:
    """Everything that is shown, as JSON data."""
    from legr_cli.pruning import lowest_share
    from legr_cli.settings import parse_align

    units, cost = analysis.units, analysis.cost
    flops = cost.flops_by_layer(cost.sizes)
    layers, layer_flops = [], []
    for name, layer in units.flow.layers.items():
        free = units.unit_of(layer.out)
        free = free[free >= 0]
        layer_flops.append(flops[name])
        pins = [{"channels": p.channels, "by": p.reason} for p in units.pins if p.layer == name]
        layers.append(
            {
                "name": name,
                "kind": layer.kind,
                "channels": len(layer.out),
                "units": len(set(free.tolist())),
                "groups": sorted(set(cost.group_of[free].tolist())),
                "flops": round(flops[name]),
                "pinned": pins,
            }
        )
    return {
        "arch": str(analysis.network.arch),
        "input": list(analysis.network.input_shape),
        "flops": analysis.flops,
        "params": analysis.params,
        "units": units.count,
        "groups": len(cost.sizes),
        "lowest_flops_share": {a: lowest_share(analysis, parse_align(a)) for a in ("auto", "1")},
        "layers": layers,
        "pinned": [dataclasses.asdict(pin) for pin in units.pins],
        "other_flops": analysis.flops - round(sum(layer_flops)),
        "sha256": analysis.sha256,
    }


def _show_table(facts: dict[str, Any]) -> None:
    """Print the table to stdout, since it is the result of this command."""
    size = "x".join(map(str, facts["input"]))
    title = (
        f"{facts['arch']} at {size}: {output.format_count(facts['flops'])}FLOPs by fvcore "
        f"(one multiply-add = 1), {output.format_count(facts['params'])} parameters, "
        f"{facts['units']} units in {facts['groups']} groups"
    )
    columns = ("layer", "kind", "filters", "units", "group", "FLOPs", "share", "pinned")
    table = output.table(title, *columns, left=("layer", "kind"))
    for layer in facts["layers"]:
        table.add_row(
            layer["name"],
            layer["kind"].replace("depthwise", "dw conv"),
            str(layer["channels"]),
            str(layer["units"]),
            _groups(layer["groups"]),
            output.format_count(layer["flops"]),
            f"{layer['flops'] / facts['flops']:.1%}",
            str(sum(pin["channels"] for pin in layer["pinned"]) or ""),
        )
    other = facts["other_flops"]
    if other:
        share = f"{other / facts['flops']:.1%}"
        table.add_row("norms, pools", "", "", "", "", output.format_count(other), share, "")
    screen = output.console(stderr=False)
    output.print_table(screen, table)
    for reason, names in _by_reason(facts["pinned"]).items():
        screen.print(f"pinned by {reason}: {', '.join(names)}", style="dim")
    auto, exact = facts["lowest_flops_share"].values()
    screen.print(f"lowest target: --flops {auto:g} ({exact:g} with --align 1)", style="dim")


def _by_reason(pins: list[dict[str, Any]]) -> dict[str, list[str]]:
    """For each reason, the layers it pins and how many channels of each.

    This also names layers that have no rule themselves, and so no row in the table.
    """
    found: dict[str, list[str]] = {}
    for pin in pins:
        found.setdefault(pin["reason"], []).append(f"{pin['layer']} ({pin['channels']})")
    return found


def _groups(groups: list[int]) -> str:
    """`7`, or `5 groups` for a layer whose channels are in several."""
    return f"{len(groups)} groups" if len(groups) > 1 else "".join(map(str, groups))
