"""`legr compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legr_cli.commands import options
from legr_cli.commands.options import setting
from legr_cli.errors import OutputError, SettingError

if TYPE_CHECKING:
    from legr_cli.data.dataset import Data

_SEARCH = "Searches (legr, random, legr-ddpg; amc for each target)"
_ROUNDS, _TRIALS, _TUNING = "Rounds (taylor, fisher)", "Trials (morphnet)", "Tuning, of all alike"


def compare(
    checkpoint: options.Checkpoint,
    data: options.Data,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            show_default=False,
            help="A folder for compare.json, rankings, networks before and after tuning, and all "
            "journals.",
        ),
    ],
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAME,…|all",
            help="legr, norm, uniform, random, legr-ddpg, taylor, fisher; amc and morphnet, which "
            "start anew for each target.",
        ),
    ] = "legr,uniform",
    flops: Annotated[
        str, typer.Option(metavar="SHARE", help="FLOPs to keep: 0.4, 0.3,0.5 or 0.2:0.8:0.1.")
    ] = "0.2:0.8:0.1",
    repeats: Annotated[
        int,
        typer.Option(metavar="N", help="Do everything so often, with seeds --seed, --seed + 1, …"),
    ] = 1,
    seed: Annotated[
        int,
        typer.Option(metavar="N", help="Of all that is random, the images held out among it."),
    ] = 0,
    resume: options.Resume = False,
    force: options.Force = False,
    search_flops: Annotated[
        str | None,
        setting(
            _SEARCH,
            "SHARE,…",
            "Where candidates are compared, except amc's: at one share, or at several by their "
            "mean accuracy.",
            "the lowest --flops",
        ),
    ] = None,
    candidates: Annotated[
        int, setting(_SEARCH, "N", "Networks that every search tries.", True)
    ] = 400,
    sigma: Annotated[float, setting(_SEARCH, "X", "Size of changes, except amc's.", True)] = 1.0,
    fitness: Annotated[
        str, setting(_SEARCH, "finetune|bn|none", "As of legr learn.", True)
    ] = "finetune",
    steps: Annotated[
        int | None, setting(_SEARCH, "N", "Batches to adapt a candidate on.", "200, for bn 8")
    ] = None,
    lr: Annotated[
        float, setting(_SEARCH, "RATE", "… with this rate; also morphnet's.", True)
    ] = 0.01,
    val_images: Annotated[
        int, setting(_SEARCH, "N", "Images to measure a candidate on, at most.", True)
    ] = 10_000,
    batch_size: Annotated[
        int, setting(_SEARCH, "N", "Images in a batch, of all methods.", True)
    ] = 128,
    round_units: Annotated[
        int, setting(_ROUNDS, "N", "Units (or aligned blocks) that go a round.", True)
    ] = 1,
    round_steps: Annotated[
        int, setting(_ROUNDS, "N", "Steps of training before that.", True)
    ] = 500,
    round_lr: Annotated[float, setting(_ROUNDS, "RATE", "Their learning rate.", True)] = 0.0025,
    fisher_weight: Annotated[
        float,
        setting(
            _ROUNDS,
            "X",
            "fisher's λ: how much the FLOPs of a unit count beside its information.",
            True,
        ),
    ] = 1.0,
    trials: Annotated[int, setting(_TRIALS, "N", "Values of λ that each target gets.", True)] = 3,
    trial_steps: Annotated[int, setting(_TRIALS, "N", "Steps of training with each.", True)] = 2000,
    recipe: Annotated[str, setting(_TUNING, "NAME", "As of legr finetune.", True)] = "quick",
    epochs: Annotated[
        int | None,
        setting(_TUNING, "N", "Another length; the recipe keeps its shape.", "the recipe's"),
    ] = None,
    align: options.Align = "auto",
    min_keep: options.MinKeep = 0.1,
    normalize: options.Normalize = None,
    download: options.Download = False,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=options.MACHINE,
            help="Candidates of a search tried at once, each in a process of its own.",
        ),
    ] = 1,
    device: options.Device = "auto",
    amp: options.Amp = False,
    arch: options.Arch = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Compare LeGR with the prior art on your own network: accuracy by FLOPs, and what it cost.

    All methods have the same units, budget cut, images and tuning, so that only the method differs.
    The cost is split as in the paper: what it takes to find out what to prune, and what the tuning
    takes. Stopped at any moment, it goes on with --resume. legr report draws the folder, and legr
    prune takes its rankings.

    Examples:

      legr compare resnet56.th --arch resnet56 --data cifar10:DIR --normalize imagenet --out versus

      legr compare dense.safetensors --data digits --methods all --repeats 3 --out versus
    """
    from legr_cli.baselines.comparison import ComparisonRun
    from legr_cli.baselines.methods import parse_methods
    from legr_cli.commands.compare_view import run_and_show
    from legr_cli.commands.invocation import command_line
    from legr_cli.commands.output import busy, half_helps
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

    others = {"amp": amp and half_helps(choose(device))}
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
    with busy("reading the network") as now:
        network = open_network(checkpoint, arch, classes, size)
        network.model.float()  # images come in single precision
        analysis = analyze(network)
        check_fitness(analysis, fitness)
        now("reading the images")
        first = images_for(network, images, seed)
        check_classes(network.model, first)

    def opened(number: int) -> "Data":
        return images_for(network, images, number)

    run = ComparisonRun(analysis, opened, settings, device, out, command_line(), lambda *_: None)
    run_and_show(run, first, resume, force, as_json)


def _check_out(out: Path, resume: bool, force: bool) -> None:
    """Say what is in the way before any work is done."""
    from legr_cli.files import check_folder

    if resume and force:
        raise SettingError("--resume goes on, --force begins anew: choose one")
    check_folder(out, "compare.jsonl")
    if (out / "compare.jsonl").exists() and not (resume or force):
        raise OutputError(
            f"{out} has a comparison: --resume goes on with it, --force begins anew, or choose "
            "another --out"
        )
