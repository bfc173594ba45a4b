"""`legr compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legr_cli.commands import options
from legr_cli.commands.options import flag, setting

if TYPE_CHECKING:
    from legr_cli.settings import Compare

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
            metavar="SHARE,…",
            help="Shares of the FLOPs to keep: a number (0.4), a list (0.3,0.5) or a range "
            "(0.2:0.8:0.1).",
        ),
    ] = "0.2:0.8:0.1",
    repeats: Annotated[
        int,
        typer.Option(
            metavar="N", help="Number of repetitions; their seeds are --seed, --seed + 1 and so on."
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
            "Shares of the FLOPs at which candidates are compared, as in legr learn --flops. Not "
            "used by amc.",
            "what --flops spans; its lowest with another fitness than repair",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        setting(
            _SEARCH,
            "N",
            "Number of candidates that each search evaluates.",
            "100; 400 with another fitness than repair",
        ),
    ] = None,
    sigma: Annotated[
        float,
        setting(_SEARCH, "SIGMA", "Standard deviation of mutations. Not used by amc."),
    ] = 1.0,
    fitness: options.Fitness = None,
    steps: options.Steps = None,
    lr: Annotated[
        float,
        setting(
            options.CANDIDATES,
            "RATE",
            "Learning rate for adapting candidates; also used by morphnet.",
        ),
    ] = 0.01,
    val_images: options.ValImages = None,
    batch_size: Annotated[
        int, setting(options.CANDIDATES, "N", "Number of images per batch, for all methods.")
    ] = 128,
    round_units: Annotated[
        int,
        setting(_ROUNDS, "N", "Number of units (or aligned blocks) to remove per round."),
    ] = 1,
    round_steps: Annotated[int, setting(_ROUNDS, "N", "Number of training steps per round.")] = 500,
    round_lr: Annotated[
        float, setting(_ROUNDS, "RATE", "Learning rate during each round.")
    ] = 0.0025,
    fisher_weight: Annotated[
        float,
        setting(
            _ROUNDS,
            "LAMBDA",
            "Weight of a unit's FLOPs relative to its Fisher information (λ of fisher).",
        ),
    ] = 1.0,
    trials: Annotated[int, setting(_TRIALS, "N", "Number of values of λ to try per target.")] = 3,
    trial_steps: Annotated[
        int, setting(_TRIALS, "N", "Number of training steps per value of λ.")
    ] = 2000,
    repair: Annotated[
        int,
        setting(
            _TUNING,
            "N",
            "Number of training images to repair every network with before it is fine-tuned; 0 "
            "fine-tunes the networks as they were cut.",
        ),
    ] = 0,
    teacher: Annotated[
        bool,
        flag(_TUNING, "--teacher", "Distill from the dense network in fine-tuning."),
    ] = False,
    recipe: Annotated[
        str | None,
        setting(
            _TUNING,
            "NAME",
            "Fine-tuning recipe; legr finetune --recipes lists them.",
            "repaired with --repair and --teacher, else quick",
        ),
    ] = None,
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
    score: options.ScoreFunction = None,
    loss: options.LossFunction = None,
    outputs: options.Outputs = None,
    ignore_index: options.IgnoreIndex = 255,
    normalize: options.Normalize = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    transform: options.Transform = None,
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
    weights: options.Weights = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Compare LeGR with other pruning methods on your own network: score, FLOPs and cost.

    All methods share the same prunable units, budgets, images and fine-tuning, so only the method
    itself differs. As in the paper, the cost of deciding what to prune is reported separately from
    the cost of fine-tuning. Images without labels are fine-tuned towards the dense network's
    outputs, and scored by how close they come. An interrupted comparison can be resumed with
    --resume. Pass the folder to legr report to plot it; legr prune accepts its rankings.

    Examples:

      legr compare dense.safetensors --data cifar10:DIR --out versus

      legr compare dense.safetensors --data digits --methods all --out versus
    """
    from legr_cli.baselines.compare import compare_network
    from legr_cli.commands.compare_view import show_comparison
    from legr_cli.commands.invocation import command_line
    from legr_cli.commands.progress import resumable
    from legr_cli.models.network import open_network
    from legr_cli.shapes import parse_input

    given = locals()
    images = options.images_from(given)
    task = options.task_from(given, images, checkpoint)
    settings = _settings(given)
    with resumable() as display:
        found = compare_network(
            open_network(checkpoint, arch, classes, parse_input(input_shape), weights=weights),
            images,
            settings,
            out,
            resume=resume,
            force=force,
            task=task,
            device=device,
            command=command_line(),
            progress=display.report,
        )
    show_comparison(found, as_json)


def _settings(given: dict[str, Any]) -> "Compare":
    """The settings of the comparison, from the options."""
    from legr_cli.baselines.methods import parse_methods
    from legr_cli.settings import Compare, parse_align
    from legr_cli.targets import parse_shares, parse_targets
    from legr_cli.training.recipes import default_recipe, settings_of

    notes = {"repaired": True} if given["repair"] else {}
    recipe = given["recipe"] or default_recipe(notes, given["teacher"])
    searched = given["search_flops"]
    shares = () if searched is None else parse_shares(searched, "search-flops")
    length = {} if given["epochs"] is None else {"epochs": given["epochs"]}
    return options.settings_from(
        Compare,
        given,
        methods=parse_methods(given["methods"]),
        targets=tuple(parse_targets("flops", given["flops"])),
        training=settings_of(recipe, **length, amp=given["amp"]),
        align=parse_align(given["align"]),
        search_flops=shares,
    )
