"""`legr evaluate`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from legr_cli.commands import options
from legr_cli.commands.options import flag, setting

if TYPE_CHECKING:
    from legr_cli.models.network import Network


def evaluate(
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="NETWORK",
            show_default=False,
            help="Networks to evaluate: files written by legr, weights files for --arch, or "
            "torchvision:NAME.",
        ),
    ],
    data: options.Data,
    split: Annotated[
        str,
        setting(
            options.IMAGES,
            "test|val",
            "Images to evaluate on: the test images, or the held-out validation images.",
        ),
    ] = "test",
    recalibrate: Annotated[
        bool,
        flag(
            options.IMAGES,
            "--recalibrate",
            "Re-estimate BatchNorm statistics on 1,024 training images first, as a quick estimate "
            "of a pruned network's quality before fine-tuning. The file is not changed.",
        ),
    ] = False,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            callback=options.within("--seed", 0, 2**63 - 1),
            rich_help_panel=options.IMAGES,
            help="Random seed that selects the held-out images.",
        ),
    ] = 0,
    batch_size: Annotated[
        int,
        typer.Option(
            metavar="N",
            callback=options.within("--batch-size", 1, 10**6),
            rich_help_panel=options.HARDWARE,
            help="Number of images per batch.",
        ),
    ] = 250,
    normalize: options.Normalize = None,
    download: options.Download = False,
    device: options.Device = "auto",
    arch: options.Arch = None,
    weights: options.Weights = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Measure the accuracy of one or more networks, dense or pruned.

    Shows top-1 and top-5 accuracy, the loss and the FLOPs of each network, and how its images were
    preprocessed.

    Examples:

      legr evaluate nets/*.safetensors --data cifar10:DIR --recalibrate

      legr evaluate dense.pth --arch resnet56 --data cifar10:DIR
    """
    from legr_cli.commands.evaluate_view import show_scores
    from legr_cli.commands.output import spinner
    from legr_cli.data.dataset import parse_statistics
    from legr_cli.models.network import in_single_precision, open_network
    from legr_cli.shapes import parse_input
    from legr_cli.training.evaluate import evaluate_each
    from legr_cli.training.inputs import Images

    images = Images(data, parse_statistics(normalize), download)
    size = parse_input(input_shape)
    with spinner("loading") as update:

        def opened() -> Iterator["Network"]:
            for number, name in enumerate(networks, 1):
                update(f"evaluating {name} ({number} of {len(networks)})")
                network = open_network(name, arch, classes, size, weights=weights)
                yield replace(network, model=in_single_precision(network.model))

        found = evaluate_each(
            opened(),
            images,
            split=split,
            recalibrated=recalibrate,
            batch_size=batch_size,
            seed=seed,
            device=device,
        )
        scores = list(zip(networks, found, strict=True))
    show_scores(scores, data, split, recalibrate, as_json)
