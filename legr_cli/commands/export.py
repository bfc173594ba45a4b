"""`legr export`."""

from pathlib import Path
from typing import Annotated

import typer

from legr_cli.commands import options
from legr_cli.errors import SettingError


def _parse_batch(text: str) -> int | None:
    """`free` or a number of images."""
    if text == "free":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= 65_536:
        raise SettingError(f"--batch {text}: expected a number of images or free")
    return int(text)


def export(
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="NETWORK",
            show_default=False,
            help="Networks to export: files written by legr, weights files for --arch, "
            "torchvision:NAME or random:NAME.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE|DIR",
            show_default=False,
            help="Where to write: an .onnx file for one network, or a folder for several.",
        ),
    ],
    batch: Annotated[
        str,
        typer.Option(metavar="N|free", help="Number of images per batch; free accepts any number."),
    ] = "free",
    opset: Annotated[
        int, typer.Option(metavar="N", help="ONNX opset version, from 18 to 23.")
    ] = 18,
    arch: options.Arch = None,
    weights: options.Weights = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    module: Annotated[
        str | None,
        typer.Option(
            "--module",
            metavar="NAME",
            show_default=False,
            rich_help_panel=options.NETWORK,
            help="Export only this part of the network, such as the backbone of a detector.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Export networks to ONNX, and verify each with ONNX Runtime against torch.

    The metadata of each file records the input size and, if known, the mean and standard deviation
    of each channel and the class names, so that the code on a board can read them from the file.

    Examples:

      legr export tuned.safetensors --out robot.onnx --batch 1

      legr export nets/*.safetensors --out onnx

      legr export detector.safetensors --module backbone --out backbone.onnx
    """
    from legr_cli.commands.export_view import show_exported
    from legr_cli.commands.progress import ProgressDisplay
    from legr_cli.deploy.export import export_files
    from legr_cli.models.network import open_network
    from legr_cli.shapes import parse_input

    size, free_or_number = parse_input(input_shape), _parse_batch(batch)
    with ProgressDisplay() as display:
        written = export_files(
            networks,
            lambda name: open_network(name, arch, classes, size, weights=weights),
            out,
            batch=free_or_number,
            opset=opset,
            module=module,
            progress=display.report,
        )
    show_exported(written, as_json)
