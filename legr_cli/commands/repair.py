"""`legr repair`."""

from pathlib import Path
from typing import Annotated

import typer

from legr_cli.commands import options


def repair(
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="NETWORK",
            show_default=False,
            help="Pruned networks: files written by legr prune.",
        ),
    ],
    dense: Annotated[
        str,
        typer.Option(
            "--dense",
            metavar="CHECKPOINT",
            show_default=False,
            rich_help_panel=options.NETWORK,
            help="Dense network that they were pruned from: the CHECKPOINT passed to legr prune.",
        ),
    ],
    data: options.Pictures,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE|DIR",
            show_default=False,
            help="Where to write: a .safetensors file for one network, or a folder for several.",
        ),
    ],
    images: Annotated[
        int,
        typer.Option(
            metavar="N", rich_help_panel=options.REPAIR, help="Maximum number of images to use."
        ),
    ] = 512,
    ridge: Annotated[
        float,
        typer.Option(
            metavar="WEIGHT",
            rich_help_panel=options.REPAIR,
            help="Weight of each layer's squared change, relative to the mean square of its "
            "inputs. Larger values change less; with few images, 1 may work better.",
        ),
    ] = 0.1,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", rich_help_panel=options.REPAIR, help="Random seed that chooses the images."
        ),
    ] = 0,
    outputs: options.Outputs = None,
    normalize: options.Normalize = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    transform: options.Transform = None,
    download: options.Download = False,
    arch: options.Arch = None,
    weights: options.Weights = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also repair networks that are fine-tuned, which undoes the training."
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Make pruned networks usable at once: new weights from a few images, without labels.

    Each layer is fitted in closed form to what the dense network computes on the images. A fifth of
    them is held out to check that the repaired network is closer to the dense one than before;
    if it is not, the weights are left unchanged, and the output says so. Fine-tune afterwards, or
    not at all.

    Examples:

      legr repair small.safetensors --dense resnet56.th --data images:DIR --out usable.safetensors

      legr repair nets/*.safetensors --dense resnet56.th --data cifar10:DIR --out repaired
    """
    from legr_cli.commands.invocation import command_line
    from legr_cli.commands.progress import ProgressDisplay
    from legr_cli.commands.repair_view import show_repaired
    from legr_cli.models.network import open_network
    from legr_cli.repairs.files import repair_files
    from legr_cli.repairs.pictures import RepairData
    from legr_cli.settings import Pictures, Repair

    given = RepairData(
        data=data,
        settings=Repair(images=images, ridge=ridge, seed=seed, outputs=outputs),
        normalize=normalize,
        pictures=Pictures(resize=resize, crop=crop, transform=transform),
        download=download,
    )
    with ProgressDisplay() as display:
        written = repair_files(
            networks,
            lambda name: open_network(name, arch),
            lambda cut: open_network(
                dense, arch, input_shape=cut.input_shape, weights=weights, usual=cut.arch
            ),
            given,
            out,
            force=force,
            command=command_line(),
            progress=display.report,
        )
    show_repaired(written, as_json)
