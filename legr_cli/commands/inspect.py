"""`legr inspect`."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legr_cli.commands import options

if TYPE_CHECKING:
    from legr_cli.pruning import Analysis


def _archs(wanted: bool) -> None:
    """List the names that --arch takes, and stop."""
    if wanted:
        from legr_cli.models.registry import known_names

        typer.echo("\n".join(known_names()))
        raise typer.Exit


def inspect(
    checkpoint: options.Checkpoint,
    arch: options.Arch = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
    archs: Annotated[  # noqa: ARG001 (its callback does it all)
        bool,
        typer.Option("--archs", callback=_archs, is_eager=True, help="List all names for --arch."),
    ] = False,
) -> None:
    """Show layers, units, FLOPs by layer, and what cannot be pruned and why.

    A unit is the channels that must live or die together; layers with the same group number share
    their units. Channels are pinned by the network's output and by ops that have no rule.

    Examples:

      legr inspect random:mobilenet_v2

      legr inspect weights.pth --arch mynets.drone:build --input 3x96x96 --json
    """
    from legr_cli.commands import output
    from legr_cli.models.network import open_network
    from legr_cli.pruning import analyze
    from legr_cli.settings import parse_input

    size = parse_input(input_shape) if input_shape else None
    with output.console().status("tying channels into units"):
        analysis = analyze(open_network(checkpoint, arch, classes, size))
    if as_json:
        output.emit(_facts(analysis))
    else:
        _show(_facts(analysis))


def _facts(analysis: "Analysis") -> dict[str, Any]:
    """All that the table shows, as plain data."""
    from legr_cli.pruning import lowest_share
    from legr_cli.settings import parse_align

    units, cost = analysis.units, analysis.cost
    flops = cost.flops_by_layer(cost.sizes)
    layers, of_layers = [], []
    for name, layer in units.flow.layers.items():
        free = units.of(layer.out)
        free = free[free >= 0]
        of_layers.append(flops[name])
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
        "other_flops": analysis.flops - round(sum(of_layers)),
        "sha256": analysis.sha256,
    }


def _show(facts: dict[str, Any]) -> None:
    """The table, on stdout: it is this command's result."""
    from legr_cli.commands import output

    size = "x".join(map(str, facts["input"]))
    title = (
        f"{facts['arch']} on {size}: {output.count(facts['flops'])}FLOPs by fvcore "
        f"(one multiply-add = 1), {output.count(facts['params'])} parameters, "
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
            _few(layer["groups"]),
            output.count(layer["flops"]),
            f"{layer['flops'] / facts['flops']:.1%}",
            str(sum(pin["channels"] for pin in layer["pinned"]) or ""),
        )
    other = facts["other_flops"]
    if other:
        share = f"{other / facts['flops']:.1%}"
        table.add_row("norms, pools", "", "", "", "", output.count(other), share, "")
    screen = output.console(stderr=False)
    output.put(screen, table)
    for reason, names in _by_reason(facts["pinned"]).items():
        screen.print(f"pinned by {reason}: {', '.join(names)}", style="dim")
    auto, exact = facts["lowest_flops_share"].values()
    screen.print(f"lowest target: --flops {auto:g} ({exact:g} with --align 1)", style="dim")


def _by_reason(pins: list[dict[str, Any]]) -> dict[str, list[str]]:
    """For each op that pins, the layers it holds and how many channels of each.

    A layer that has no rule itself is in no row of the table; here it is named.
    """
    found: dict[str, list[str]] = {}
    for pin in pins:
        found.setdefault(pin["reason"], []).append(f"{pin['layer']} ({pin['channels']})")
    return found


def _few(groups: list[int]) -> str:
    """`7`, or `5 groups` for a layer whose channels go different ways."""
    return f"{len(groups)} groups" if len(groups) > 1 else "".join(map(str, groups))
