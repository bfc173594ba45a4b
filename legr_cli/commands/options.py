"""Arguments and options that several commands share."""

from typing import Annotated, Any

import typer

NETWORK, IMAGES, HOW, MACHINE = "The network", "The images", "How to cut", "The machine"
BOARD = "A board to measure on"


def setting(panel: str, metavar: str, about: str, default: str | bool = False) -> Any:
    """An option that changes one number or word of many; `default`: whether or how to show it."""
    return typer.Option(metavar=metavar, help=about, show_default=default, rich_help_panel=panel)


Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        show_default=False,
        help="A weights file (.safetensors, or a state dict in .pt .pth .th .t7 .tar), "
        "torchvision:NAME\\[@WEIGHTS], or random:NAME (no weights).",
    ),
]
Arch = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="NAME",
        show_default=False,
        rich_help_panel=NETWORK,
        help="resnet20|32|44|56|110 (CIFAR; resnet56,pad=after for zeros after the channels), "
        "vgg13_cifar, mobilenet_v2_cifar, any torchvision name, timm:NAME, or your own "
        "package.module:factory. Files that legr wrote need none, unless the network is your own.",
    ),
]
Classes = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        show_default=False,
        rich_help_panel=NETWORK,
        help="Number of classes, where it is not the architecture's own.",
    ),
]
InputShape = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="CxHxW",
        show_default=False,
        rich_help_panel=NETWORK,
        help="Size of one image. Default: the architecture's own, 3x224x224 for your own.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="SPEC",
        show_default=False,
        rich_help_panel=IMAGES,
        help="cifar10:DIR, cifar100:DIR, imagenet:DIR, cub200:DIR, folder:DIR (train/CLASS/*.jpg, "
        "and val/ and test/ if you have them), or digits (inside legr).",
    ),
]
Normalize = Annotated[
    str | None,
    typer.Option(
        "--normalize",
        metavar="NAME|M,M,M:S,S,S",
        show_default=False,
        rich_help_panel=IMAGES,
        help="Mean and deviation that the network was trained with: imagenet, cifar10, cifar100, "
        "half, none, or numbers. Default: what the network's file says, else what is usual for the "
        "data (folder: imagenet).",
    ),
]
Download = Annotated[
    bool,
    typer.Option(
        "--download",
        rich_help_panel=IMAGES,
        help="Fetch the data first, where torchvision can (CIFAR).",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda|cuda:N|mps",
        rich_help_panel=MACHINE,
        help="auto: a GPU if there is one. Several processes spread over all GPUs unless one is "
        "named.",
    ),
]
Amp = Annotated[
    bool,
    typer.Option(
        "--amp",
        rich_help_panel=MACHINE,
        help="Train in bfloat16, or in float16 on older GPUs, where that is faster.",
    ),
]
Align = Annotated[
    str,
    typer.Option(
        "--align",
        metavar="auto|avx512|avx2|arm|N",
        rich_help_panel=HOW,
        help="Keep channels in multiples that the CPU's kernels like; auto: this CPU's. "
        "1 is the paper's own cut: exact, and often slower.",
    ),
]
MinKeep = Annotated[
    float,
    typer.Option(
        "--min-keep",
        metavar="SHARE",
        rich_help_panel=HOW,
        help="Share of every layer that is never removed.",
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on where it was stopped, and end as if it never was.")
]
Force = Annotated[bool, typer.Option("--force", help="Begin anew, and replace what is in the way.")]
Ssh = Annotated[
    str | None,
    typer.Option(
        "--ssh",
        metavar="USER@HOST",
        show_default=False,
        rich_help_panel=BOARD,
        help="Measure there, by your own ssh with its keys and settings. The board needs python3 "
        "with numpy and onnxruntime; nothing is written on it.",
    ),
]
Python = Annotated[
    str,
    typer.Option(
        "--python",
        metavar="COMMAND",
        rich_help_panel=BOARD,
        help="The Python to use there, such as '~/venv/bin/python'.",
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON object on stdout instead of a table."),
]
