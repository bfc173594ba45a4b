"""`legr inspect`."""

from typing import Annotated

import typer

from legr_cli.commands import options


def _show_archs() -> None:
    """List the names that --arch accepts."""
    from legr_cli.commands.inspect_view import show_archs

    show_archs()


def inspect(
    checkpoint: options.Checkpoint,
    arch: options.Arch = None,
    weights: options.Weights = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    module: options.Module = None,
    keep: options.Keep = None,
    min_keep: options.LayerMinKeep = None,
    as_json: options.Json = False,
    archs: Annotated[  # noqa: ARG001 (handled by its callback)
        bool,
        typer.Option(
            "--archs",
            callback=options.show_and_exit(_show_archs),
            is_eager=True,
            help="List the names that --arch accepts and exit.",
        ),
    ] = False,
) -> None:
    """Show a network's layers, prunable units and FLOPs, and which channels cannot be pruned.

    A unit is a set of channels that can only be removed together; layers with the same group number
    share their units. Channels are pinned (never removed) if they reach the network's output or an
    operation that has no pruning rule.

    Examples:

      legr inspect random:mobilenet_v2

      legr inspect weights.pth --arch mynets.drone:build --input 3x96x96 --json
    """
    from legr_cli.commands.inspect_view import show_summary
    from legr_cli.commands.output import spinner
    from legr_cli.models.network import open_network
    from legr_cli.pruning import analyze, summarize
    from legr_cli.settings import parse_min_keep
    from legr_cli.shapes import parse_input

    with spinner("grouping channels into units"):
        network = open_network(
            checkpoint, arch, classes, parse_input(input_shape), weights=weights, module=module
        )
        analysis = analyze(network)
        summary = summarize(analysis, *parse_min_keep(min_keep or (), keep or ()))
    show_summary(summary, as_json)
