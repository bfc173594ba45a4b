"""Arguments and options that several commands share."""

from typing import Annotated

import typer

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
        rich_help_panel="The network",
        help="resnet20|32|44|56|110 (CIFAR; resnet56,pad=after for zeros after the channels), "
        "vgg13_cifar, mobilenet_v2_cifar, any torchvision name, timm:NAME, or your own "
        "package.module:factory. Files that legr wrote need none.",
    ),
]
Classes = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        show_default=False,
        rich_help_panel="The network",
        help="Number of classes, where it is not the architecture's own.",
    ),
]
InputShape = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="CxHxW",
        show_default=False,
        rich_help_panel="The network",
        help="Size of one image. Default: the architecture's own, 3x224x224 for your own.",
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON object on stdout instead of a table."),
]
