"""`legr compare`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from legr_cli.commands import options
from legr_cli.commands.options import setting
from legr_cli.search.fitness import FITNESS

_SEARCH = "Search (legr, random and legr-ddpg; amc once per target)"
_ROUNDS, _TRIALS = "Gradual pruning (taylor, fisher)", "Trials (morphnet)"
_TUNING = "Fine-tuning (all methods)"


def compare(
    checkpoint: options.Checkpoint,
    data: options.Data,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            show_default=False,
            help="Folder to write: compare.json, rankings, networks before and after fine-tuning, "
            "and journals.",
        ),
    ],
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAME,…|all",
            help="Methods to compare: legr, norm, uniform, random, legr-ddpg, taylor, fisher, amc "
            "and morphnet; the last two start over for each target.",
        ),
    ] = "legr,uniform",
    flops: Annotated[
        str,
        typer.Option(
            metavar="SHARE",
            help="Shares of the FLOPs to keep: a number (0.4), a list (0.3,0.5) or a range "
            "(0.2:0.8:0.1).",
        ),
    ] = "0.2:0.8:0.1",
    repeats: Annotated[
        int,
        typer.Option(
            metavar="N", help="Number of repetitions, with seeds --seed, --seed + 1 and so on."
        ),
    ] = 1,
    seed: Annotated[
        int,
        typer.Option(metavar="N", help="Random seed; also selects the held-out images."),
    ] = 0,
    resume: options.Resume = False,
    force: options.Force = False,
    search_flops: Annotated[
        str | None,
        setting(
            _SEARCH,
            "SHARE,…",
            "Share of the FLOPs at which candidates are compared; several shares compare by mean "
            "accuracy. Not used by amc.",
            "lowest --flops",
        ),
    ] = None,
    candidates: Annotated[
        int, setting(_SEARCH, "N", "Number of candidates that each search evaluates.", True)
    ] = 400,
    sigma: Annotated[
        float,
        setting(_SEARCH, "SIGMA", "Standard deviation of mutations. Not used by amc.", True),
    ] = 1.0,
    fitness: Annotated[
        str,
        setting(
            _SEARCH,
            "|".join(FITNESS),
            "How to adapt a candidate before measuring its accuracy: train it (finetune), "
            "re-estimate its BatchNorm statistics (bn), or not at all (none).",
            True,
        ),
    ] = "finetune",
    steps: Annotated[
        int | None,
        setting(_SEARCH, "N", "Adaptation steps per candidate.", "200; 8 with --fitness bn"),
    ] = None,
    lr: Annotated[
        float,
        setting(
            _SEARCH,
            "RATE",
            "Learning rate for adapting candidates; also used by morphnet.",
            True,
        ),
    ] = 0.01,
    val_images: Annotated[
        int,
        setting(
            _SEARCH, "N", "Maximum number of validation images to measure a candidate on.", True
        ),
    ] = 10_000,
    batch_size: Annotated[
        int, setting(_SEARCH, "N", "Images per batch, for all methods.", True)
    ] = 128,
    round_units: Annotated[
        int,
        setting(_ROUNDS, "N", "Units (or aligned blocks) to remove per round.", True),
    ] = 1,
    round_steps: Annotated[int, setting(_ROUNDS, "N", "Training steps per round.", True)] = 500,
    round_lr: Annotated[
        float, setting(_ROUNDS, "RATE", "Learning rate of the training in each round.", True)
    ] = 0.0025,
    fisher_weight: Annotated[
        float,
        setting(
            _ROUNDS,
            "LAMBDA",
            "Weight of a unit's FLOPs relative to its Fisher information (λ of fisher).",
            True,
        ),
    ] = 1.0,
    trials: Annotated[
        int, setting(_TRIALS, "N", "Number of values of λ to try per target.", True)
    ] = 3,
    trial_steps: Annotated[
        int, setting(_TRIALS, "N", "Training steps per value of λ.", True)
    ] = 2000,
    recipe: Annotated[
        str,
        setting(
            _TUNING,
            "NAME",
            "Fine-tuning recipe; legr finetune --recipes lists them.",
            True,
        ),
    ] = "quick",
    epochs: Annotated[
        int | None,
        setting(
            _TUNING,
            "N",
            "Number of epochs; the recipe's schedule is scaled to fit.",
            "set by the recipe",
        ),
    ] = None,
    align: options.Align = "auto",
    min_keep: options.MinKeep = 0.1,
    normalize: options.Normalize = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    random_crop: options.RandomCrop = None,
    flip: options.Flip = None,
    ignore_class_names: options.IgnoreClassNames = False,
    download: options.Download = False,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=options.HARDWARE,
            help="Number of candidates to evaluate in parallel, each in its own process.",
        ),
    ] = 1,
    device: options.Device = "auto",
    amp: options.Amp = False,
    arch: options.Arch = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Compare LeGR with other pruning methods on your own network: accuracy, FLOPs and cost.

    All methods share the same prunable units, budgets, images and fine-tuning, so only the method
    itself differs. As in the paper, the cost of deciding what to prune is reported separately from
    the cost of fine-tuning. An interrupted comparison can be resumed with --resume. Pass the folder
    to legr report to plot it; legr prune accepts its rankings.

    Examples:

      legr compare resnet56.th --arch resnet56 --data cifar10:DIR --normalize imagenet --out versus

      legr compare dense.safetensors --data digits --methods all --repeats 3 --out versus
    """
    from legr_cli.baselines.compare import check_output, compare_network
    from legr_cli.baselines.methods import parse_methods
    from legr_cli.commands.compare_view import show_comparison
    from legr_cli.commands.invocation import command_line
    from legr_cli.commands.progress import resumable
    from legr_cli.data.feed import parse_statistics
    from legr_cli.models.network import open_network
    from legr_cli.settings import Compare, Pictures, parse_align, parse_input
    from legr_cli.targets import parse_targets
    from legr_cli.training.inputs import Images
    from legr_cli.training.recipes import settings_of

    searched = parse_targets("flops", search_flops, "search-flops") if search_flops else []
    length = {} if epochs is None else {"epochs": epochs}
    settings = options.settings_from(
        Compare,
        locals(),
        methods=parse_methods(methods),
        targets=tuple(parse_targets("flops", flops)),
        training=settings_of(recipe, **length, amp=amp),
        align=parse_align(align),
        search_flops=tuple(target.value for target in searched),
    )
    images = Images(
        data,
        parse_statistics(normalize),
        download,
        pictures=Pictures(resize=resize, crop=crop, random_crop=random_crop, flip=flip),
        ignore_class_names=ignore_class_names,
    )
    check_output(out, resume, force)
    with resumable() as display:
        network = open_network(checkpoint, arch, classes, parse_input(input_shape))
        kept: dict[str, Any] = {
            "resume": resume,
            "force": force,
            "device": device,
            "command": command_line(),
        }
        found = compare_network(network, images, settings, out, **kept, progress=display.report)
    show_comparison(found, as_json)
