"""Arguments and options that several commands share."""

import contextlib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from legr_cli.errors import CheckpointError, OutputError, SettingError
from legr_cli.search.fitness import FITNESS

if TYPE_CHECKING:
    from legr_cli.training.inputs import Images
    from legr_cli.training.tasks import Task

NETWORK, IMAGES, PRUNING, HARDWARE = "Network", "Images", "Pruning", "Hardware"
CANDIDATES, BOARD, REPAIR = "Candidate fitness", "Remote board", "Repair"
Settings = TypeVar("Settings")


def setting(panel: str, metavar: str, text: str, default: str | bool = True) -> Any:
    """An option with a value, listed in a panel; `default` replaces the default that help shows."""
    return typer.Option(metavar=metavar, help=text, show_default=default, rich_help_panel=panel)


def flag(panel: str, name: str, text: str) -> Any:
    """A switch without a value, listed in a panel."""
    return typer.Option(name, help=text, rich_help_panel=panel)


def show_and_exit(show: Callable[[], None]) -> Callable[[bool], None]:
    """A callback for a switch that shows something instead of running the command."""

    def callback(requested: bool) -> None:
        if requested:
            show()
            raise typer.Exit

    return callback


def settings_from(kind: type[Settings], given: dict[str, Any], **parsed: Any) -> Settings:
    """Settings from options of the same names, with `parsed` in place of what was text."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    values = {name: given[name] for name in names if name in given}
    return kind(**{**values, **parsed})


def images_from(given: dict[str, Any]) -> "Images":
    """Where the images come from and how they are prepared, from the options of a command."""
    from legr_cli.data.feed import parse_statistics
    from legr_cli.settings import Pictures
    from legr_cli.training.inputs import Images

    return Images(
        given["data"],
        parse_statistics(given["normalize"]),
        given["download"],
        hold_out=not given.get("all_images"),
        pictures=settings_from(Pictures, given),
        ignore_class_names=given["ignore_class_names"],
        ignore_index=given.get("ignore_index", 255),
    )


def task_from(
    given: dict[str, Any], images: "Images", network: str | None, against: bool = False
) -> "Task":
    """The task that the data implies, with the user's own --loss, --score and --outputs.

    What the outputs are is recorded in a network's file. `against`: the targets are the outputs of
    another network, whatever the data.
    """
    from legr_cli.models.card import outputs_of, read_card
    from legr_cli.models.registry import imported
    from legr_cli.training.tasks import CLOSENESS, task_for

    def function(name: str) -> Any:
        text = given[name]
        return text and imported(f"--{name}", text, name, "a function of outputs and targets")

    outputs = given["outputs"] or ("values" if given.get("module") else None)
    if outputs is None and network is not None and Path(network).is_file():
        with contextlib.suppress(CheckpointError):  # raised where the file is opened, if at all
            card = read_card(Path(network))
            outputs = outputs_of(card.notes, card.module)
    usual = CLOSENESS if against else images.task
    return task_for(function("loss"), function("score"), usual, outputs)


def within(name: str, least: int, most: int) -> Callable[[int | None], int | None]:
    """A callback that checks a number's range without showing the range in the help."""

    def check(value: int | None) -> int | None:
        if value is not None and value < least:
            raise SettingError(f"{name} must be at least {least}, got {value}")
        if value is not None and value > most:
            raise SettingError(f"{name} must be at most {most}, got {value}")
        return value

    return check


def json_file(out: Path | None) -> Path | None:
    """A callback that sees, before any work is done, that --out can be written."""
    from legr_cli.files import require_folder

    if out is not None:
        require_folder(out)
        if out.suffix != ".json" or out.is_dir():
            raise OutputError(f"--out {out}: name a file that ends in .json")
    return out


Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        show_default=False,
        help="Network to load: a weights file (.safetensors, or a state dict in .pt, .pth, .th, "
        ".t7, .tar, .ckpt, .bin or .pkl), torchvision:NAME\\[@WEIGHTS], or random:NAME for "
        "untrained weights.",
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
        "Files written by legr record it, unless it is your own factory.",
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="KEY",
        show_default=False,
        rich_help_panel=NETWORK,
        help="Key of the weights in the checkpoint, such as state_dict_ema; dots separate nested "
        "keys. Defaults to the first state dict that fits the network, with averages (EMA) last.",
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
    list[str] | None,
    typer.Option(
        "--input",
        metavar="[NAME=]CxHxW",
        show_default=False,
        rich_help_panel=NETWORK,
        help="Shape of one input image. Defaults to the architecture's own, or to 3x224x224 for "
        "your own networks. Repeat it with names for several inputs: --input image=3x96x96 "
        "--input state=4.",
    ),
]
Module = Annotated[
    str | None,
    typer.Option(
        "--module",
        metavar="NAME",
        show_default=False,
        rich_help_panel=NETWORK,
        help="Prune only this part of the network, such as the backbone of a detector, and leave "
        "the rest as it is. Targets are then shares of this part.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="SPEC",
        show_default=False,
        rich_help_panel=IMAGES,
        help="Dataset: folder:DIR (train/CLASS/*.jpg, with optional val/ and test/), pairs:DIR "
        "(train/*.jpg with label pictures train-labels/*.png, for segmentation), images:DIR (any "
        "folder of images without labels), cifar10:DIR, cifar100:DIR, imagenet:DIR, cub200:DIR, or "
        "digits (bundled with legr).",
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
        "folder:DIR, pairs:DIR, or digits (bundled with legr).",
    ),
]
ScoreFunction = Annotated[
    str | None,
    typer.Option(
        "--score",
        metavar="MODULE:FUNCTION",
        show_default=False,
        rich_help_panel=IMAGES,
        help="Score of your own: a function of outputs and targets that returns the mean over a "
        "batch, higher is better. Defaults to accuracy; to mean IoU for pairs:DIR; without labels, "
        "to how close the outputs are to the dense network's.",
    ),
]
LossFunction = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="MODULE:FUNCTION",
        show_default=False,
        rich_help_panel=IMAGES,
        help="Loss of your own: a function of outputs and targets that returns the mean over a "
        "batch. Defaults to cross entropy.",
    ),
]
Outputs = Annotated[
    str | None,
    typer.Option(
        "--outputs",
        metavar="classes|values",
        show_default="as recorded in the network's file, or classes",
        rich_help_panel=IMAGES,
        help="What outputs of images x numbers are, where they are compared with the dense "
        "network's: scores of classes, or values such as angles and coordinates. Other outputs are "
        "compared as values.",
    ),
]
IgnoreIndex = Annotated[
    int,
    typer.Option(
        "--ignore-index",
        metavar="N",
        callback=within("--ignore-index", 0, 65_535),
        rich_help_panel=IMAGES,
        help="With pairs:DIR: class number of the pixels that do not count.",
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
Resize = Annotated[
    str | None,
    typer.Option(
        metavar="crop|squash|pad|none",
        show_default="as recorded in the network's file, or usual for the dataset",
        rich_help_panel=IMAGES,
        help="How to fit images to the input size: resize to cover it and crop the center (crop), "
        "resize regardless of the aspect ratio (squash), or resize to fit inside it and pad with "
        "black (pad); none requires images of the input size.",
    ),
]
Crop = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        show_default=False,
        rich_help_panel=IMAGES,
        help="With --resize crop: side of the center crop, relative to the resized image. 0.875 "
        "resizes to 256 and crops 224; 1, the default for folder:, crops as little as possible.",
    ),
]
RandomCrop = Annotated[
    str | None,
    typer.Option(
        metavar="none|padded|resized",
        show_default=False,
        rich_help_panel=IMAGES,
        help="Random crops for training: none (the default for folder:), crops of the image "
        "padded with black (padded), or a random part resized to the input size (resized).",
    ),
]
Transform = Annotated[
    str | None,
    typer.Option(
        "--transform",
        metavar="MODULE:FUNCTION",
        show_default=False,
        rich_help_panel=IMAGES,
        help="Function of your own that makes the input, a floating-point tensor, of a PIL image; "
        "it replaces all resizing, cropping and normalization.",
    ),
]
Flip = Annotated[
    bool | None,
    typer.Option(
        "--flip/--no-flip",
        show_default=False,
        rich_help_panel=IMAGES,
        help="Mirror half of the training images at random. Off by default for folder:, because "
        "a mirrored image may belong to another class.",
    ),
]
IgnoreClassNames = Annotated[
    bool,
    typer.Option(
        "--ignore-class-names",
        rich_help_panel=IMAGES,
        help="Number the dataset's classes in sorted order, even if the network's file names "
        "other classes.",
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
Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="PATTERN",
        show_default=False,
        rich_help_panel=PRUNING,
        help="Never prune layers whose names match, such as head or 'stage1.*'. Can be repeated.",
    ),
]
LayerMinKeep = Annotated[
    list[str] | None,
    typer.Option(
        "--min-keep",
        metavar="[PATTERN=]SHARE",
        show_default="0.1",
        rich_help_panel=PRUNING,
        help="Minimum share of each layer's channels to keep; with a pattern, of the layers whose "
        "names match. Can be repeated.",
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
Fitness = Annotated[
    str | None,
    setting(
        CANDIDATES,
        "|".join(FITNESS),
        "How to adapt a candidate before measuring it: repair it in closed form and compare its "
        "outputs with the dense network's (repair), train it for --steps as in the paper "
        "(finetune), only re-estimate its BatchNorm statistics (bn), or not at all (none).",
        "repair, if any layer can be repaired",
    ),
]
Steps = Annotated[
    int | None,
    setting(
        CANDIDATES,
        "N",
        "Number of adaptation steps per candidate; with --fitness repair, batches of images to "
        "repair with.",
        "200; 8 with --fitness bn, 2 with repair",
    ),
]
ValImages = Annotated[
    int | None,
    setting(
        CANDIDATES,
        "N",
        "Maximum number of validation images to measure a candidate on; they come from val/, or "
        "from a tenth of train/ that is held out.",
        "10,000; 500 with --fitness repair",
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
    typer.Option("--json", help="Print the result to stdout as one JSON object."),
]
