"""`legr learn`."""

import contextlib
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legr_cli.commands import options

if TYPE_CHECKING:
    from legr_cli.search.setup import SearchSetup

Header = dict[str, Any] | None  # of a history, where there is one to go on with
_SEARCH, _FITNESS = "The search", "The fitness of a candidate"


def learn(
    checkpoint: options.Checkpoint,
    data: options.Data,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="The ranking, NAME.json; its history goes beside it as NAME.history.jsonl.",
        ),
    ],
    resume: options.Resume = False,
    force: options.Force = False,
    flops: Annotated[
        str,
        typer.Option(
            metavar="SHARE,…",
            rich_help_panel=_SEARCH,
            help="Candidates are compared at this share of the FLOPs, the lowest you consider; or "
            "at several, by their mean accuracy: 0.2,0.4.",
        ),
    ] = "0.2",
    candidates: Annotated[
        int, typer.Option(rich_help_panel=_SEARCH, help="How many to try.")
    ] = 400,
    population: Annotated[
        int,
        typer.Option(rich_help_panel=_SEARCH, help="Candidates alive at once; the oldest goes."),
    ] = 64,
    sample: Annotated[
        int, typer.Option(rich_help_panel=_SEARCH, help="Of so many, the fittest is a parent.")
    ] = 16,
    mutate: Annotated[
        float, typer.Option(rich_help_panel=_SEARCH, help="Share of the layers that change.")
    ] = 0.1,
    sigma: Annotated[
        float, typer.Option(rich_help_panel=_SEARCH, help="Size of a change at first.")
    ] = 1.0,
    sigma_end: Annotated[
        float, typer.Option(rich_help_panel=_SEARCH, help="Size of a change at the end.")
    ] = 1.0,
    start: Annotated[
        str,
        typer.Option(
            metavar="auto|identity|level|random",
            rich_help_panel=_SEARCH,
            help="The first candidates: changes of α = 1, κ = 0 (identity); of α and κ that take "
            "the same share of every layer (level); of the fitter of the two; or all at random.",
        ),
    ] = "auto",
    seed: Annotated[
        int, typer.Option(rich_help_panel=_SEARCH, help="Same seed and workers, same ranking.")
    ] = 0,
    fitness: Annotated[
        str,
        typer.Option(
            metavar="finetune|bn|none",
            rich_help_panel=_FITNESS,
            help="Before it is measured, train a candidate for some steps; or only re-estimate its "
            "BatchNorm statistics, at a fraction of the cost; or nothing.",
        ),
    ] = "finetune",
    steps: Annotated[
        int | None,
        typer.Option(
            show_default="200, for bn 8", rich_help_panel=_FITNESS, help="Batches for that."
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(rich_help_panel=_FITNESS, help="Images in a batch.")
    ] = 128,
    lr: Annotated[float, typer.Option(rich_help_panel=_FITNESS, help="Learning rate.")] = 0.01,
    val_images: Annotated[
        int,
        typer.Option(
            rich_help_panel=_FITNESS,
            help="Measure on at most so many validation images (a tenth of train/, or val/).",
        ),
    ] = 10_000,
    align: options.Align = "auto",
    min_keep: options.MinKeep = 0.1,
    normalize: options.Normalize = None,
    download: options.Download = False,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="1, or all of a cluster",
            rich_help_panel=options.MACHINE,
            help="Candidates tried at once, each in a process of its own.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            show_default=False,
            rich_help_panel=options.MACHINE,
            help="Use the workers of a Dask cluster, such as tcp://10.0.0.5:8786.",
        ),
    ] = None,
    device: options.Device = "auto",
    amp: options.Amp = False,
    arch: options.Arch = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Learn which filters matter: (α, κ) for each layer, by evolution on your data (once).

    Every candidate is really cut to --flops, adapted, and measured on validation images that legr
    never trains on. Stopped at any moment, a search goes on with --resume and ends as if it had
    never been stopped.

    Examples:

      legr learn resnet56.th --arch resnet56 --data cifar10:DIR --normalize imagenet --out r.json

      legr learn drone.pth --arch drone:build --input 3x96x96 --data folder:DIR --out drone.json
    """
    from legr_cli.commands.learn_view import run_and_show
    from legr_cli.commands.output import console, half_helps
    from legr_cli.data.dataset import parse_statistics
    from legr_cli.models.network import open_network
    from legr_cli.pruning import analyze
    from legr_cli.search.setup import SearchSetup, check_reach
    from legr_cli.search.workers import connected
    from legr_cli.settings import FITNESS, Search, parse_align, parse_input
    from legr_cli.targets import parse_targets
    from legr_cli.training.devices import choose
    from legr_cli.training.inputs import Images, images_for
    from legr_cli.training.measure import check_classes

    settings = Search(
        flops=tuple(target.value for target in parse_targets("flops", flops)),
        candidates=candidates,
        population=population,
        sample=sample,
        mutate=mutate,
        sigma=sigma,
        sigma_end=sigma_end,
        start=start,
        fitness=fitness,
        steps=FITNESS.get(fitness, 0) if steps is None or fitness == "none" else steps,
        batch_size=batch_size,
        lr=lr,
        amp=amp and fitness == "finetune" and (cluster is not None or half_helps(choose(device))),
        val_images=val_images,
        min_keep=min_keep,
        align=parse_align(align),
        seed=seed,
        workers=1 if workers is None else workers,
    )
    images = Images(data, parse_statistics(normalize) if normalize else None, download)
    size = parse_input(input_shape) if input_shape else None
    then = _check_out(out, resume, force)
    with contextlib.ExitStack() as stack:
        status = stack.enter_context(console().status("reading the network"))
        client = None if cluster is None else stack.enter_context(connected(cluster))
        if client is not None and workers is None:
            settings = replace(settings, workers=_cluster_size(client, then))
        analysis = analyze(open_network(checkpoint, arch, classes, size))
        check_reach(analysis, settings)
        analysis.network.model.float()  # images come in single precision
        status.update("reading the images")
        found = images_for(analysis.network, images, seed)
        check_classes(analysis.network.model, found)
        setup = SearchSetup(analysis, found, settings, device)
        status.update("measuring the dense network")
        header = {**setup.header(), "dense": _dense(setup, then, client is not None)}
        status.stop()
        given_of_network = {"--arch": arch, "--classes": classes, "--input": input_shape}
        words = ["legr", "prune", checkpoint]
        words += [str(x) for pair in given_of_network.items() if pair[1] for x in pair]
        words += ["--ranking", str(out), "--flops", "0.2:0.8:0.1", "--out", "nets"]
        run_and_show(setup, header, out, resume, force, client, shlex.join(words), as_json)


def _check_out(out: Path, resume: bool, force: bool) -> Header:
    """Say what is in the way before any work is done; what the search to resume was begun with."""
    from legr_cli.files import check_out
    from legr_cli.journal import read_header
    from legr_cli.search.history import HISTORY, history_of

    history = history_of(out)
    beside = {"a ranking": out, "the history of a search": history}
    check_out(out, ".json", beside, resume, force)
    return read_header(history, HISTORY) if resume else None


def _cluster_size(client: Any, then: Header) -> int:
    """Workers of a cluster; for a search that goes on, as many as it was begun with."""
    if then is not None:
        return int(then["settings"]["workers"])
    return max(1, sum(client.nthreads().values()))


def _dense(setup: "SearchSetup", then: Header, remote: bool) -> dict[str, Any]:
    """What the dense network reaches; a search that goes on has it in its history."""
    if then is not None and "dense" in then:
        return dict(then["dense"])
    return setup.dense(remote).line()
