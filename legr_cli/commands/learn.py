"""`legr learn`."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from legr_cli.commands import options
from legr_cli.search.fitness import FITNESS

_SEARCH, _FITNESS = "Search", "Candidate fitness"


def learn(
    checkpoint: options.Checkpoint,
    data: options.Data,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Ranking to write, NAME.json; the search history goes to NAME.history.jsonl.",
        ),
    ],
    resume: options.Resume = False,
    force: options.Force = False,
    flops: Annotated[
        str,
        typer.Option(
            metavar="SHARE,…",
            rich_help_panel=_SEARCH,
            help="Share of the FLOPs at which candidates are compared; use the lowest target you "
            "plan to prune to. Several shares (0.2,0.4) compare by mean accuracy.",
        ),
    ] = "0.2",
    candidates: Annotated[
        int,
        typer.Option(
            metavar="N", rich_help_panel=_SEARCH, help="Number of candidates to evaluate."
        ),
    ] = 400,
    population: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=_SEARCH,
            help="Population size; each new candidate replaces the oldest.",
        ),
    ] = 64,
    sample: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=_SEARCH,
            help="Tournament size: the fittest of this many candidates becomes the parent.",
        ),
    ] = 16,
    mutate: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=_SEARCH,
            help="Share of the layers that a mutation changes.",
        ),
    ] = 0.1,
    sigma: Annotated[
        float,
        typer.Option(
            metavar="SIGMA",
            rich_help_panel=_SEARCH,
            help="Standard deviation of mutations at the start of the search.",
        ),
    ] = 1.0,
    sigma_end: Annotated[
        float,
        typer.Option(
            metavar="SIGMA",
            rich_help_panel=_SEARCH,
            help="Standard deviation of mutations at the end of the search.",
        ),
    ] = 1.0,
    start: Annotated[
        str,
        typer.Option(
            metavar="auto|identity|level|random",
            rich_help_panel=_SEARCH,
            help="Initial population: mutations of α = 1, κ = 0 (identity), mutations of the α and "
            "κ that prune every layer by the same share (level), mutations of the fitter of the "
            "two (auto), or random candidates (random).",
        ),
    ] = "auto",
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=_SEARCH,
            help="Random seed; also selects the held-out images. The same seed and number of "
            "workers give the same ranking.",
        ),
    ] = 0,
    fitness: Annotated[
        str,
        typer.Option(
            metavar="|".join(FITNESS),
            rich_help_panel=_FITNESS,
            help="How to adapt a candidate before measuring its accuracy: train it for --steps "
            "(finetune), only re-estimate its BatchNorm statistics at a fraction of the cost (bn), "
            "or not at all (none).",
        ),
    ] = "finetune",
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="200; 8 with --fitness bn",
            rich_help_panel=_FITNESS,
            help="Adaptation steps per candidate.",
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=_FITNESS, help="Images per batch.")
    ] = 128,
    lr: Annotated[
        float,
        typer.Option(
            metavar="RATE",
            rich_help_panel=_FITNESS,
            help="Learning rate for adapting candidates.",
        ),
    ] = 0.01,
    val_images: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=_FITNESS,
            help="Maximum number of validation images to measure a candidate on; they come from "
            "val/, or from a tenth of train/ that is held out.",
        ),
    ] = 10_000,
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
        int | None,
        typer.Option(
            metavar="N",
            show_default="1; with --cluster, all of its workers",
            rich_help_panel=options.HARDWARE,
            help="Number of candidates to evaluate in parallel, each in its own process.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            show_default=False,
            rich_help_panel=options.HARDWARE,
            help="Evaluate candidates on a Dask cluster at this address, such as tcp://10.0.0.5:8786.",
        ),
    ] = None,
    device: options.Device = "auto",
    amp: options.Amp = False,
    arch: options.Arch = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Learn a global filter ranking: (α, κ) for each layer, by evolutionary search on your data.

    One ranking serves every pruning target. Each candidate is pruned to --flops, adapted, and
    measured on held-out images that legr never trains on. An interrupted search can be resumed with
    --resume; the result matches an uninterrupted one.

    Examples:

      legr learn resnet56.th --arch resnet56 --data cifar10:DIR --normalize imagenet --out r.json

      legr learn drone.pth --arch drone:build --input 3x96x96 --data folder:DIR --out drone.json
    """
    from legr_cli.commands.invocation import command_line
    from legr_cli.commands.learn_view import show_learned
    from legr_cli.commands.progress import resumable
    from legr_cli.data.feed import parse_statistics
    from legr_cli.models.network import open_network
    from legr_cli.search.learn import learn_network
    from legr_cli.settings import Pictures, Search, parse_align, parse_input
    from legr_cli.targets import parse_targets
    from legr_cli.training.inputs import Images

    settings = options.settings_from(
        Search,
        locals(),
        flops=tuple(target.value for target in parse_targets("flops", flops)),
        align=parse_align(align),
        workers=1 if workers is None else workers,
    )
    images = Images(
        data,
        parse_statistics(normalize),
        download,
        pictures=Pictures(resize=resize, crop=crop, random_crop=random_crop, flip=flip),
        ignore_class_names=ignore_class_names,
    )
    with resumable() as display:
        result = learn_network(
            lambda: open_network(checkpoint, arch, classes, parse_input(input_shape)),
            images,
            settings,
            out,
            resume=resume,
            force=force,
            device=device,
            cluster=cluster,
            all_workers=workers is None,
            command=command_line(),
            progress=display.report,
        )
    words = {"--arch": arch, "--classes": classes, "--input": input_shape, "--ranking": out}
    show_learned(result, out, _prune_command(checkpoint, words), as_json)


def _prune_command(checkpoint: str, words: dict[str, Any]) -> str:
    """What to type next."""
    given = [str(word) for pair in words.items() if pair[1] for word in pair]
    return shlex.join(
        ["legr", "prune", checkpoint, *given, "--flops", "0.2:0.8:0.1", "--out", "nets"]
    )
