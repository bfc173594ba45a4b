"""`legr compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legr_cli.commands import options
from legr_cli.commands.options import setting
from legr_cli.errors import OutputError, SettingError

if TYPE_CHECKING:
    from legr_cli.data.dataset import Data

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
            "finetune|bn|none",
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
    from legr_cli.baselines.comparison import ComparisonRun
    from legr_cli.baselines.methods import parse_methods
    from legr_cli.commands.compare_view import run_and_show
    from legr_cli.commands.invocation import command_line
    from legr_cli.commands.output import amp_helps, spinner
    from legr_cli.data.dataset import parse_statistics
    from legr_cli.models.network import open_network
    from legr_cli.pruning import analyze
    from legr_cli.search.setup import check_fitness
    from legr_cli.settings import FITNESS, Compare, parse_align, parse_input
    from legr_cli.targets import parse_targets
    from legr_cli.training.devices import choose
    from legr_cli.training.inputs import Images, images_for
    from legr_cli.training.measure import check_classes
    from legr_cli.training.recipes import settings_of

    others = {"amp": amp and amp_helps(choose(device))}
    searched = parse_targets("search-flops", search_flops) if search_flops is not None else []
    settings = Compare(
        methods=parse_methods(methods),
        targets=tuple(parse_targets("flops", flops)),
        training=settings_of(recipe, **others, **({} if epochs is None else {"epochs": epochs})),
        align=parse_align(align),
        min_keep=min_keep,
        search_flops=tuple(target.value for target in searched),
        candidates=candidates,
        sigma=sigma,
        fitness=fitness,
        steps=FITNESS.get(fitness, 0) if steps is None or fitness == "none" else steps,
        lr=lr,
        batch_size=batch_size,
        val_images=val_images,
        round_units=round_units,
        round_steps=round_steps,
        round_lr=round_lr,
        fisher_weight=fisher_weight,
        trials=trials,
        trial_steps=trial_steps,
        repeats=repeats,
        seed=seed,
        workers=workers,
    )
    images = Images(data, parse_statistics(normalize) if normalize else None, download)
    size = parse_input(input_shape) if input_shape else None
    _check_out(out, resume, force)
    with spinner("loading the network") as update:
        network = open_network(checkpoint, arch, classes, size)
        network.model.float()  # images are float32
        analysis = analyze(network)
        check_fitness(analysis, fitness)
        update("loading the images")
        first = images_for(network, images, seed)
        check_classes(network.model, first)

    def open_images(number: int) -> "Data":
        return images_for(network, images, number)

    run = ComparisonRun(
        analysis, open_images, settings, device, out, command_line(), lambda *_: None
    )
    run_and_show(run, first, resume, force, as_json)


def _check_out(out: Path, resume: bool, force: bool) -> None:
    """Check --out before any work is done."""
    from legr_cli.files import check_folder

    if resume and force:
        raise SettingError("--resume and --force cannot be combined")
    check_folder(out, "compare.jsonl")
    if (out / "compare.jsonl").exists() and not (resume or force):
        raise OutputError(
            f"{out} already contains a comparison: pass --resume to resume it, --force to "
            "overwrite it, or choose another --out"
        )
