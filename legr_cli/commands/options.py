"""Arguments and options that several commands share."""

from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, TypeVar

import typer

from legr_cli.errors import SettingError

NETWORK, IMAGES, PRUNING, HARDWARE = "Network", "Images", "Pruning", "Hardware"
BOARD = "Remote board"
Settings = TypeVar("Settings")


def setting(panel: str, metavar: str, text: str, default: str | bool = False) -> Any:
    """An option that overrides one setting of many; `default`: whether or how to show it."""
    return typer.Option(metavar=metavar, help=text, show_default=default, rich_help_panel=panel)


def settings_from(kind: type[Settings], given: dict[str, Any], **parsed: Any) -> Settings:
    """Settings from options of the same names, with `parsed` in place of what was text."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    values = {name: given[name] for name in names if name in given}
    return kind(**{**values, **parsed})


def within(name: str, least: int, most: int) -> Callable[[int | None], int | None]:
    """A callback that checks a number's range without showing the range in the help."""

    def check(value: int | None) -> int | None:
        if value is not None and value < least:
            raise SettingError(f"{name} must be at least {least}, got {value}")
        if value is not None and value > most:
            raise SettingError(f"{name} must be at most {most}, got {value}")
        return value

    return check


Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        show_default=False,
        help="Network to load: a weights file (.safetensors, or a state dict in .pt, .pth, .th, "
        ".t7 or .tar), torchvision:NAME\\[@WEIGHTS], or random:NAME for untrained weights.",
    ),
]
Arch = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="NAME",
        show_default=False,
        rich_help_panel=NETWORK,
        help="Architecture of a plain weights file: resnet20|32|44|56|110 for CIFAR (append "
        ",pad=after if the shortcuts pad zeros after the channels), vgg13_cifar, "
        "mobilenet_v2_cifar, any torchvision name, timm:NAME, or your own package.module:factory. "
        "Files written by legr record it, except for your own factory.",
    ),
]
Classes = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        callback=within("--classes", 1, 10**6),
        show_default=False,
        rich_help_panel=NETWORK,
        help="Number of classes, if it differs from the architecture's default.",
    ),
]
InputShape = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="CxHxW",
        show_default=False,
        rich_help_panel=NETWORK,
        help="Shape of one input image. Defaults to the architecture's own, or to 3x224x224 for "
        "your own networks.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="SPEC",
        show_default=False,
        rich_help_panel=IMAGES,
        help="Dataset: cifar10:DIR, cifar100:DIR, imagenet:DIR, cub200:DIR, folder:DIR "
        "(train/CLASS/*.jpg, with optional val/ and test/), or digits (bundled with legr).",
    ),
]
Pictures = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="SPEC",
        show_default=False,
        rich_help_panel=IMAGES,
        help="Images without labels: images:DIR, any folder, searched recursively; or a dataset, "
        "whose labels are ignored: cifar10:DIR, cifar100:DIR, imagenet:DIR, cub200:DIR, "
        "folder:DIR, or digits (bundled with legr).",
    ),
]
Normalize = Annotated[
    str | None,
    typer.Option(
        "--normalize",
        metavar="NAME|M,M,M:S,S,S",
        show_default=False,
        rich_help_panel=IMAGES,
        help="Mean and standard deviation the network was trained with: imagenet, cifar10, "
        "cifar100, half, none, or the numbers themselves. Defaults to what the network's file "
        "records, or else to the usual values for the dataset (imagenet for folder:).",
    ),
]
Download = Annotated[
    bool,
    typer.Option(
        "--download",
        rich_help_panel=IMAGES,
        help="Download the dataset first, if torchvision provides it (CIFAR).",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda|cuda:N|mps",
        rich_help_panel=HARDWARE,
        help="Device to run on; auto uses a GPU if one is available. Multiple processes spread "
        "over all GPUs unless you name one.",
    ),
]
Amp = Annotated[
    bool,
    typer.Option(
        "--amp",
        rich_help_panel=HARDWARE,
        help="Train with mixed precision where it is faster: bfloat16, or float16 on older GPUs.",
    ),
]
Align = Annotated[
    str,
    typer.Option(
        "--align",
        metavar="auto|avx512|avx2|arm|N",
        rich_help_panel=PRUNING,
        help="Keep channel counts at multiples that suit the CPU's kernels; auto detects the CPU. "
        "1 cuts exactly as in the paper, which is often slower to run.",
    ),
]
MinKeep = Annotated[
    float,
    typer.Option(
        "--min-keep",
        metavar="SHARE",
        rich_help_panel=PRUNING,
        help="Minimum share of each layer's channels to keep.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Resume an interrupted run; the result matches an uninterrupted one."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Start over, overwriting existing output.")]
Ssh = Annotated[
    str | None,
    typer.Option(
        "--ssh",
        metavar="USER@HOST",
        show_default=False,
        rich_help_panel=BOARD,
        help="Measure on this host over ssh, using your ssh keys and configuration. The host needs "
        "python3 with numpy and onnxruntime; nothing is written to its disk.",
    ),
]
Python = Annotated[
    str,
    typer.Option(
        "--python",
        metavar="COMMAND",
        rich_help_panel=BOARD,
        help="Python interpreter to use on the remote host, such as '~/venv/bin/python'.",
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object to stdout instead of a table."),
]
