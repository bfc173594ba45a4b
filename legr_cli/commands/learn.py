"""`legr learn`."""

import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legr_cli.commands import options
from legr_cli.commands.options import setting

if TYPE_CHECKING:
    from legr_cli.settings import Search
    from legr_cli.training.tasks import Task

_SEARCH = "Search"


def learn(
    checkpoint: options.Checkpoint,
    data: options.Data,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Ranking to write, NAME.json; the search history goes to NAME.history.jsonl.",
        ),
    ] = Path("ranking.json"),
    resume: options.Resume = False,
    force: options.Force = False,
    flops: Annotated[
        str | None,
        setting(
            _SEARCH,
            "SHARE,…",
            "Shares of the FLOPs at which candidates are compared: one (0.4), several (0.3,0.5) or "
            "a range (0.2:0.8), which stands for its ends and their geometric mean. One ranking "
            "serves all targets that the shares span.",
            "0.2:0.8; 0.2 with another fitness than repair",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        setting(
            _SEARCH,
            "N",
            "Number of candidates to evaluate.",
            "100; 400 with another fitness than repair",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        setting(
            _SEARCH,
            "MINUTES",
            "Evaluate as many candidates as fit into this time, judged by the first three.",
            "not limited",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        setting(
            _SEARCH,
            "reconstruction|taylor|squared-norm|folded-norm",
            "Importance metric that α scales and κ shifts: what the layers behind a filter cannot "
            "reconstruct from the others (reconstruction), the first-order change of the outputs "
            "(taylor), the squared norm of its weights (squared-norm), or that after folding the "
            "BatchNorm (folded-norm).",
            "reconstruction; squared-norm with another fitness than repair",
        ),
    ] = None,
    explorer: Annotated[
        str | None,
        setting(
            _SEARCH,
            "surrogate|evolution|cmaes|random",
            "How candidates are proposed: regularized evolution as in the paper (evolution), "
            "evolution whose mutations a model screens (surrogate), CMA-ES (cmaes) or at random "
            "(random).",
            "surrogate; evolution with another fitness than repair",
        ),
    ] = None,
    objective: Annotated[
        str | None,
        setting(
            _SEARCH,
            "log|mean|score",
            "How the results at several shares become one: mean logarithm of the divergence (log), "
            "mean divergence (mean), or mean score (score).",
            "log; mean with another fitness than repair",
        ),
    ] = None,
    reject_above: Annotated[
        float | None,
        setting(
            _SEARCH,
            "FACTOR",
            "Do not measure a candidate at further shares once its divergence exceeds the best "
            "one's by this factor; 0 measures all. Only with --objective log.",
            "1.15; 0 with another objective",
        ),
    ] = None,
    population: Annotated[
        int | None,
        setting(
            _SEARCH,
            "N",
            "Population size; each new candidate replaces the oldest. With the surrogate, for its "
            "first 12 candidates.",
            "64; 24 with --fitness repair",
        ),
    ] = None,
    sample: Annotated[
        int | None,
        setting(
            _SEARCH,
            "N",
            "Tournament size: the fittest of this many candidates becomes the parent.",
            "16; 8 with --fitness repair",
        ),
    ] = None,
    mutate: Annotated[
        float, setting(_SEARCH, "SHARE", "Share of the layers that a mutation changes.")
    ] = 0.1,
    sigma: Annotated[
        float,
        setting(_SEARCH, "SIGMA", "Standard deviation of mutations at the start of the search."),
    ] = 1.0,
    sigma_end: Annotated[
        float | None,
        setting(
            _SEARCH,
            "SIGMA",
            "Standard deviation of mutations at the end of the search.",
            "equal to --sigma",
        ),
    ] = None,
    start: Annotated[
        str,
        setting(
            _SEARCH,
            "auto|identity|level|sensitivity|random",
            "Initial population: mutations of α = 1, κ = 0 (identity), of the α and κ that prune "
            "every layer by the same share (level), of the fitter of the two (auto), of the fitter "
            "of the identity and what halving each layer alone suggests (sensitivity), or random "
            "candidates (random).",
        ),
    ] = "auto",
    seed: Annotated[
        int,
        setting(
            _SEARCH,
            "N",
            "Random seed; also selects the held-out images. The same seed and number of workers "
            "give the same ranking.",
        ),
    ] = 0,
    fitness: options.Fitness = None,
    steps: options.Steps = None,
    batch_size: Annotated[
        int | None,
        setting(
            options.CANDIDATES, "N", "Number of images per batch.", "128; 64 with --fitness repair"
        ),
    ] = None,
    lr: Annotated[
        float, setting(options.CANDIDATES, "RATE", "Learning rate for adapting candidates.")
    ] = 0.01,
    val_images: options.ValImages = None,
    align: options.Align = "auto",
    keep: options.Keep = None,
    min_keep: options.LayerMinKeep = None,
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
        int | None,
        setting(
            options.HARDWARE,
            "N",
            "Number of candidates to evaluate in parallel, each in its own process.",
            "1; with --cluster, all of its workers",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        setting(
            options.HARDWARE,
            "ADDRESS",
            "Evaluate candidates on a Dask cluster at this address, such as tcp://10.0.0.5:8786.",
        ),
    ] = None,
    device: options.Device = "auto",
    amp: options.Amp = False,
    arch: options.Arch = None,
    weights: options.Weights = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    module: options.Module = None,
    as_json: options.Json = False,
) -> None:
    """Learn a global filter ranking: (α, κ) for each layer, by a search on your data.

    One ranking serves every pruning target. Each candidate is pruned to --flops, repaired or
    trained a little, and measured on held-out images that legr never trains on. After the first
    three candidates, the command says how long the search will take. An interrupted search can be
    resumed with --resume; the result matches an uninterrupted one.

    Examples:

      legr learn dense.safetensors --data cifar10:DIR

      legr learn dense.safetensors --data cifar10:DIR --minutes 10

      legr learn drone.pth --arch drone:build --data images:DIR --out r.json
    """
    from legr_cli.commands.invocation import command_line
    from legr_cli.commands.learn_view import show_learned
    from legr_cli.commands.progress import resumable
    from legr_cli.models.network import open_network
    from legr_cli.search.learn import learn_network
    from legr_cli.shapes import parse_input

    given = locals()
    images, shape = options.images_from(given), parse_input(input_shape)
    task = options.task_from(given, images, checkpoint)
    planned = _planned(given, task)
    with resumable() as display:
        result = learn_network(
            lambda: open_network(checkpoint, arch, classes, shape, weights=weights, module=module),
            images,
            planned,
            out,
            resume=resume,
            force=force,
            task=task,
            device=device,
            cluster=cluster,
            all_workers=workers is None,
            command=command_line(),
            progress=display.report,
        )
    next_step = _prune_command(given, result.settings.fitness == "repair")
    show_learned(result, out, next_step, as_json)


def _planned(given: dict[str, Any], task: "Task") -> "list[Search]":
    """The settings of the search, from the options."""
    from legr_cli.search.planning import planned_search
    from legr_cli.settings import Search, parse_align, parse_min_keep
    from legr_cli.targets import parse_shares

    min_keep, layers = parse_min_keep(given["min_keep"] or (), given["keep"] or ())
    names = [field.name for field in fields(Search) if field.name != "fitness"]
    chosen = {name: given[name] for name in names if given.get(name) is not None}
    if "flops" in chosen:
        chosen["flops"] = parse_shares(chosen["flops"], "flops")
    parsed = {"min_keep": min_keep, "min_keep_layers": layers, "align": parse_align(given["align"])}
    return planned_search(task, given["fitness"], **{**chosen, **parsed})


def _prune_command(given: dict[str, Any], repair: bool) -> str:
    """The command that prunes by the new ranking, to show as the next step.

    `repair`: the ranking was learned for repaired networks.
    """
    words = ["legr", "prune", given["checkpoint"]]
    for name in ("arch", "weights", "classes", "module"):
        words += [f"--{name}", str(given[name])] if given[name] else []
    for text in given["input_shape"] or ():
        words += ["--input", text]
    words += ["--ranking", str(given["out"]), "--flops", "0.2:0.8:0.1"]
    if repair:
        words += ["--repair", given["data"]]
        words += ["--normalize", given["normalize"]] if given["normalize"] else []
    words += ["--out", "nets"]
    return shlex.join(words)
