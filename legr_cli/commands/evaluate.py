"""`legr evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from legr_cli.commands import options
from legr_cli.commands.options import flag, setting


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
    against: Annotated[
        str | None,
        setting(
            options.IMAGES,
            "CHECKPOINT",
            "Measure how close the outputs are to those of this network, such as the dense one. "
            "Labels are not used, and images:DIR is enough.",
        ),
    ] = None,
    against_arch: Annotated[
        str | None,
        setting(
            options.IMAGES,
            "NAME",
            "Architecture of the network to compare with, if its file does not record it.",
            "same as the network's",
        ),
    ] = None,
    split: Annotated[
        str | None,
        setting(
            options.IMAGES,
            "test|val",
            "Images to evaluate on: the test images, or the held-out validation images.",
            "test; val for images:DIR",
        ),
    ] = None,
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
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=options.json_file,
            show_default=False,
            help="Also write the results to this .json file, for legr report.",
        ),
    ] = None,
    score: options.ScoreFunction = None,
    loss: options.LossFunction = None,
    outputs: options.Outputs = None,
    ignore_index: options.IgnoreIndex = 255,
    normalize: options.Normalize = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    transform: options.Transform = None,
    ignore_class_names: options.IgnoreClassNames = False,
    download: options.Download = False,
    device: options.Device = "auto",
    arch: options.Arch = None,
    weights: options.Weights = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Measure the accuracy of one or more networks, dense or pruned.

    Shows the score, the loss and the FLOPs of each network, and how its images were preprocessed.
    The score is accuracy for labeled images, mean IoU for pairs:DIR, a function of your own with
    --score, and closeness to another network with --against, which needs no labels.

    Examples:

      legr evaluate nets/*.safetensors --data cifar10:DIR --recalibrate

      legr evaluate dense.pth --arch resnet56 --data cifar10:DIR

      legr evaluate small.safetensors --against dense.pth --data images:DIR
    """
    from legr_cli.commands.evaluate_view import show_scores
    from legr_cli.commands.output import spinner
    from legr_cli.models.peers import open_peers, peer_opener
    from legr_cli.shapes import parse_input
    from legr_cli.training.evaluate import evaluate_each

    images = options.images_from(locals())
    task = options.task_from(locals(), images, networks[0], against is not None)
    names: list[str] = []  # in the order in which the networks are opened
    with spinner("loading") as update:

        def opening(name: str) -> None:
            names.append(name)
            update(f"evaluating {name} ({len(names)} of {len(networks)})")

        shape = parse_input(input_shape)
        peers = open_peers(networks, arch, classes, shape, weights, on_open=opening)
        found = evaluate_each(
            (peer for _, peer in peers),
            images,
            split=split,
            against=peer_opener(against, against_arch),
            task=task,
            recalibrated=recalibrate,
            batch_size=batch_size,
            seed=seed,
            device=device,
        )
        scores = dict(zip(names, list(found), strict=True))
    show_scores([(name, scores[name]) for name in networks], data, recalibrate, as_json, out)
