"""`legr prune`."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legr_cli.commands import options
from legr_cli.commands.options import setting
from legr_cli.errors import SettingError

if TYPE_CHECKING:
    from legr_cli.repairs.pictures import RepairData
    from legr_cli.targets import Target

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
        setting(
            _TARGET,
            "SHARE",
            "Share of the FLOPs to keep: a number (0.4), a list (0.3,0.5) or a range "
            "(0.2:0.8:0.1). Can be repeated.",
        ),
    ] = None,
    params: Annotated[
        list[str] | None,
        setting(
            _TARGET,
            "SHARE",
            "Share of the parameters to keep, in the same format as --flops.",
        ),
    ] = None,
    latency: Annotated[
        list[str] | None,
        setting(
            _TARGET,
            "SHARE|MS",
            "Latency to reach, as a share in the same format as --flops or in milliseconds "
            "(12ms). Measured for one image on one thread, on this machine or with --ssh on a "
            "remote board.",
        ),
    ] = None,
    ranking: Annotated[
        str | None,
        setting(
            options.PRUNING,
            "FILE|uniform",
            "Ranking learned by legr learn; uniform prunes every layer by the same share, as a "
            "baseline. Without a ranking, filters are ranked by their squared norm "
            "(α = 1, κ = 0).",
        ),
    ] = None,
    align: options.Align = "auto",
    keep: options.Keep = None,
    min_keep: options.LayerMinKeep = None,
    repair: Annotated[
        str | None,
        setting(
            options.REPAIR,
            "SPEC",
            "Repair the pruned networks with these images, without labels, as legr repair does: "
            "images:DIR, or a dataset as for legr repair --data.",
        ),
    ] = None,
    repair_images: Annotated[
        int | None,
        setting(options.REPAIR, "N", "Maximum number of images to use.", "512"),
    ] = None,
    normalize: options.Normalize = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    download: options.Download = False,
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
    weights: options.Weights = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    module: options.Module = None,
    as_json: options.Json = False,
) -> None:
    """Prune a network to one or more targets: offline, in seconds, and without data.

    FLOPs are counted by fvcore (one multiply-add counts as one) and never exceed the target. Each
    pruned network is verified: its output must match that of the dense network with the removed
    channels masked. With --repair, a few images then make it usable at once.

    Examples:

      legr prune torchvision:resnet50 --flops 0.5 --out resnet50-half.safetensors

      legr prune dense.pth --arch resnet56 --flops 0.2:0.8:0.1 --out nets

      legr prune dense.safetensors --ranking r.json --flops 0.4,0.5 --out nets

      legr prune torchvision:mobilenet_v2 --latency 0.5 --out fast.safetensors

      legr prune torchvision:resnet50 --flops 0.7 --repair images:DIR --out usable.safetensors
    """
    from legr_cli.commands.invocation import command_line
    from legr_cli.commands.progress import ProgressDisplay
    from legr_cli.commands.prune_view import show_pruned
    from legr_cli.deploy.prune_files import check_out, prune_files
    from legr_cli.models.network import open_network
    from legr_cli.settings import parse_min_keep
    from legr_cli.shapes import parse_input

    targets = _targets(flops=flops, params=params, latency=latency)
    check_out(out, checkpoint, len(targets))
    with ProgressDisplay() as display:
        network = open_network(
            checkpoint, arch, classes, parse_input(input_shape), weights=weights, module=module
        )
        result = prune_files(
            network,
            targets,
            out,
            ranking=ranking,
            align=align,
            min_keep=parse_min_keep(min_keep or (), keep or ()),
            repair=_repair_data(repair, repair_images, normalize, resize, crop, download),
            onnx=onnx,
            batch=batch,
            ssh=ssh,
            python=python,
            command=command_line(),
            progress=display.report,
        )
    show_pruned(result, as_json)


def _repair_data(
    data: str | None,
    images: int | None,
    normalize: str | None,
    resize: str | None,
    crop: float | None,
    download: bool,
) -> "RepairData | None":
    """What to repair with, from --repair and the options that need it."""
    from legr_cli.repairs.pictures import RepairData
    from legr_cli.settings import Pictures, Repair

    if data is not None:
        settings = Repair() if images is None else Repair(images=images)
        return RepairData(
            data=data,
            settings=settings,
            normalize=normalize,
            pictures=Pictures(resize=resize, crop=crop),
            download=download,
        )
    given = {"--repair-images": images, "--normalize": normalize, "--resize": resize}
    for option, value in {**given, "--crop": crop, "--download": download or None}.items():
        if value is not None:
            raise SettingError(f"{option} requires --repair")
    return None


def _targets(**given: list[str] | None) -> "tuple[Target, ...]":
    """All targets, in the order in which --help lists their kinds."""
    from legr_cli.targets import parse_targets

    found = [parse_targets(what, text) for what, texts in given.items() for text in texts or []]
    return tuple(itertools.chain.from_iterable(found))
