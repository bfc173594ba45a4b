"""`legr evaluate`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from legr_cli.commands import options

if TYPE_CHECKING:
    from legr_cli.models.network import Network


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            show_default=False,
            help="Networks to evaluate: files written by legr, weights files for --arch, or "
            "torchvision:NAME.",
        ),
    ],
    data: options.Data,
    split: Annotated[
        str,
        typer.Option(
            metavar="test|val",
            rich_help_panel=options.IMAGES,
            help="Images to evaluate on: the test images, or the held-out validation images.",
        ),
    ] = "test",
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            rich_help_panel=options.IMAGES,
            help="Re-estimate BatchNorm statistics on 1,024 training images first, as a quick "
            "estimate of a pruned network's quality before fine-tuning. The file is not changed.",
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
            help="Images per batch.",
        ),
    ] = 250,
    normalize: options.Normalize = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    ignore_class_names: options.IgnoreClassNames = False,
    download: options.Download = False,
    device: options.Device = "auto",
    arch: options.Arch = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Measure the accuracy of one or more networks, dense or pruned.

    Examples:

      legr evaluate nets/*.safetensors --data cifar10:DIR --recalibrate

      legr evaluate resnet56.th --arch resnet56 --data cifar10:DIR --normalize imagenet
    """
    from legr_cli.commands.evaluate_view import show_scores
    from legr_cli.commands.output import spinner
    from legr_cli.data.feed import parse_statistics
    from legr_cli.models.network import in_single_precision
    from legr_cli.models.peers import open_peers
    from legr_cli.settings import Pictures, parse_input
    from legr_cli.training.evaluate import evaluate_each
    from legr_cli.training.inputs import Images

    images = Images(
        data,
        parse_statistics(normalize),
        download,
        pictures=Pictures(resize=resize, crop=crop),
        ignore_class_names=ignore_class_names,
    )
    size = parse_input(input_shape)
    names: list[str] = []  # in the order in which they are opened
    with spinner("loading") as update:

        def opening(name: str) -> None:
            names.append(name)
            update(f"evaluating {name} ({len(names)} of {len(models)})")

        def opened() -> Iterator["Network"]:
            for _, network in open_peers(models, arch, classes, size, watch=opening):
                yield replace(network, model=in_single_precision(network.model))

        found = list(
            evaluate_each(
                opened(),
                images,
                split=split,
                recalibrated=recalibrate,
                batch_size=batch_size,
                seed=seed,
                device=device,
            )
        )
        scores = sorted(zip(names, found, strict=True), key=lambda row: models.index(row[0]))
    show_scores(scores, data, split, recalibrate, as_json)
