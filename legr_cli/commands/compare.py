"""`legr compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legr_cli.commands import options
from legr_cli.errors import OutputError, SettingError

if TYPE_CHECKING:
    from legr_cli.training.data import Data

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
            help="legr, norm, uniform, random, legr-ddpg, amc, taylor, fisher, morphnet.",
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
        float | None,
        typer.Option(
            metavar="SHARE",
            show_default="the lowest --flops",
            rich_help_panel=_SEARCH,
            help="Where candidates are compared, except amc's.",
        ),
    ] = None,
    candidates: Annotated[
        int,
        typer.Option(
            metavar="N", rich_help_panel=_SEARCH, help="Networks that every search tries."
        ),
    ] = 400,
    fitness: Annotated[
        str,
        typer.Option(metavar="finetune|bn|none", rich_help_panel=_SEARCH, help="As of legr learn."),
    ] = "finetune",
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="200, for bn 8",
            rich_help_panel=_SEARCH,
            help="Batches to adapt a candidate on.",
        ),
    ] = None,
    lr: Annotated[
        float,
        typer.Option(
            metavar="RATE", rich_help_panel=_SEARCH, help="… with this rate; also morphnet's."
        ),
    ] = 0.01,
    val_images: Annotated[
        int,
        typer.Option(
            metavar="N", rich_help_panel=_SEARCH, help="Images to measure a candidate on, at most."
        ),
    ] = 10_000,
    batch_size: Annotated[
        int,
        typer.Option(
            metavar="N", rich_help_panel=_SEARCH, help="Images in a batch, of all methods."
        ),
    ] = 128,
    round_units: Annotated[
        int,
        typer.Option(
            metavar="N", rich_help_panel=_ROUNDS, help="Units (or aligned blocks) that go a round."
        ),
    ] = 1,
    round_steps: Annotated[
        int,
        typer.Option(metavar="N", rich_help_panel=_ROUNDS, help="Steps of training before that."),
    ] = 500,
    round_lr: Annotated[
        float, typer.Option(metavar="RATE", rich_help_panel=_ROUNDS, help="Their learning rate.")
    ] = 0.0025,
    fisher_weight: Annotated[
        float,
        typer.Option(
            metavar="X",
            rich_help_panel=_ROUNDS,
            help="fisher's λ: how much the FLOPs of a unit count beside its information.",
        ),
    ] = 1.0,
    trials: Annotated[
        int,
        typer.Option(
            metavar="N", rich_help_panel=_TRIALS, help="Values of λ that each target gets."
        ),
    ] = 3,
    trial_steps: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=_TRIALS, help="Steps of training with each.")
    ] = 2000,
    recipe: Annotated[
        str,
        typer.Option(metavar="NAME", rich_help_panel=_TUNING, help="As of legr finetune."),
    ] = "quick",
    epochs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="the recipe's",
            rich_help_panel=_TUNING,
            help="Another length; the recipe keeps its shape.",
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
            rich_help_panel=options.MACHINE,
            help="Candidates of a search tried at once, each in a process of its own.",
        ),
    ] = 1,
    device: options.Device = "auto",
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
    from legr_cli.baselines.contest import Contest
    from legr_cli.baselines.methods import parse_methods
    from legr_cli.commands.contested import contested
    from legr_cli.commands.show import busy
    from legr_cli.commands.typed import typed
    from legr_cli.networks import open_network
    from legr_cli.pruning import study
    from legr_cli.search.session import check_fitness
    from legr_cli.settings import FITNESS, Compare, parse_align, parse_input
    from legr_cli.targets import parse_targets
    from legr_cli.training.data import open_data, parse_statistics
    from legr_cli.training.measure import check_classes
    from legr_cli.training.recipes import settings_of

    settings = Compare(
        methods=parse_methods(methods),
        targets=tuple(parse_targets("flops", flops)),
        training=settings_of(recipe, **({} if epochs is None else {"epochs": epochs})),
        align=parse_align(align),
        min_keep=min_keep,
        search_flops=search_flops,
        candidates=candidates,
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
    given = parse_statistics(normalize) if normalize else None
    size = parse_input(input_shape) if input_shape else None
    _check_out(out, resume, force)
    with busy("reading the network") as now:
        network = open_network(checkpoint, arch, classes, size)
        network.model.float()  # images come in single precision
        known = study(network)
        check_fitness(known, fitness)

        def opened(number: int) -> "Data":
            return open_data(
                data,
                network.input_shape,
                seed=number,
                statistics=given or network.notes.get("statistics"),
                download=download,
            )

        now("reading the images")
        first = opened(seed)
        check_classes(network.model, first)
    contest = Contest(known, opened, settings, device, out, typed(), lambda *_: None)
    contested(contest, first, resume, force, as_json)


def _check_out(out: Path, resume: bool, force: bool) -> None:
    """Say what is in the way before any work is done."""
    from legr_cli.files import require_folder

    if resume and force:
        raise SettingError("--resume goes on, --force begins anew: choose one")
    require_folder(out)
    if out.exists() and not out.is_dir():
        raise OutputError(f"--out {out} is a file: name a folder")
    begun = (out / "compare.jsonl").exists()
    if begun and not (resume or force):
        raise OutputError(
            f"{out} has a comparison: --resume goes on with it, --force begins anew, or choose "
            "another --out"
        )
    if not begun and out.is_dir() and any(out.iterdir()):
        raise OutputError(f"--out {out} has other things in it: name a new folder")
