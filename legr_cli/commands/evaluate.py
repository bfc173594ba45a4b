"""`legr evaluate`."""

from typing import Annotated, Any

import typer

from legr_cli import __version__
from legr_cli.commands import options
from legr_cli.errors import SettingError


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            show_default=False,
            help="Networks that legr wrote, checkpoints of --arch, torchvision:NAME.",
        ),
    ],
    data: options.Data,
    split: Annotated[
        str,
        typer.Option(
            metavar="test|val",
            rich_help_panel=options.IMAGES,
            help="The test images, or those that learn holds out from training.",
        ),
    ] = "test",
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            rich_help_panel=options.IMAGES,
            help="Re-estimate BatchNorm statistics on 1,024 training images first: a quick look at "
            "what a pruned network is worth before it is fine-tuned. The file is not changed.",
        ),
    ] = False,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=2**63 - 1, rich_help_panel=options.IMAGES, help="Of the images held out."
        ),
    ] = 0,
    batch_size: Annotated[
        int,
        typer.Option(min=1, max=10**6, rich_help_panel=options.MACHINE, help="Images in a batch."),
    ] = 250,
    normalize: options.Normalize = None,
    download: options.Download = False,
    device: options.Device = "auto",
    arch: options.Arch = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Measure the accuracy of networks, dense or pruned.

    Examples:

      legr evaluate nets/*.safetensors --data cifar10:DIR --recalibrate

      legr evaluate resnet56.th --arch resnet56 --data cifar10:DIR --normalize imagenet
    """
    from legr_cli.commands import output
    from legr_cli.data.dataset import Data, doubts, open_data, parse_statistics
    from legr_cli.models.network import open_network
    from legr_cli.settings import parse_input
    from legr_cli.training.measure import measure

    if split not in ("test", "val"):
        raise SettingError(f"--split {split}: expected test or val")
    given = parse_statistics(normalize) if normalize else None
    size = parse_input(input_shape) if input_shape else None
    rows: list[dict[str, Any]] = []
    notes: dict[str, None] = {}
    opened: dict[str, Data] = {}  # a set is read once for all networks that see it alike
    with output.busy("reading") as now:
        for number, name in enumerate(models, 1):
            now(f"measuring {name} ({number} of {len(models)})")
            network = open_network(name, arch, classes, size)
            network.model.float()  # images come in single precision
            known = given or network.notes.get("statistics")
            view = repr((network.input_shape, known))
            if view not in opened:
                opened[view] = open_data(
                    data, network.input_shape, seed=seed, statistics=known, download=download
                )
            score = measure(
                network,
                opened[view],
                split=split,
                recalibrated=recalibrate,
                seed=seed,
                batch_size=batch_size,
                device=device,
            )
            rows.append({"file": name, **score})
            notes |= dict.fromkeys([f"shown as {opened[view].feed}", *doubts(opened[view])])
    if recalibrate:
        notes["with BatchNorm statistics re-estimated, of dense networks as well"] = None
    if as_json:
        said = {"legr": __version__, "data": data, "split": split, "notes": list(notes)}
        output.emit({**said, "scores": rows})
    else:
        _show(rows, data, split)
        for note in notes:
            output.console().print(note, style="dim")


def _show(rows: list[dict[str, Any]], data: str, split: str) -> None:
    """The table, on stdout: it is this command's result."""
    from legr_cli.commands import output

    many = all(row["classes"] > 5 for row in rows)
    columns = ("network", "accuracy", *["top 5"] * many, "loss", "FLOPs", "of dense")
    title = f"{rows[0]['images']} {split} images of {data}"
    table = output.table(title, *columns, left=columns[:1])
    for row in rows:
        table.add_row(
            row["file"],
            f"{row['accuracy']:.2%}",
            *[f"{row['top5']:.2%}"] * many,
            "" if row["loss"] is None else f"{row['loss']:.4f}",
            output.count(row["flops"]),
            f"{row['flops_share']:.1%}",
        )
    output.put(output.console(stderr=False), table)
