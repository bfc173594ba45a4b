"""`legr evaluate`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from legr_cli.commands import options
from legr_cli.errors import SettingError

if TYPE_CHECKING:
    from legr_cli.data.dataset import Data
    from legr_cli.models.network import Network


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            show_default=False,
            help="Networks to evaluate: files written by legr, weights files for --arch, or "
            "torchvision:NAME.",
        ),
    ],
    data: options.Data,
    split: Annotated[
        str,
        typer.Option(
            metavar="test|val",
            rich_help_panel=options.IMAGES,
            help="Images to evaluate on: the test images, or the held-out validation images.",
        ),
    ] = "test",
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            rich_help_panel=options.IMAGES,
            help="Re-estimate BatchNorm statistics on 1,024 training images first, as a quick "
            "estimate of a pruned network's quality before fine-tuning. The file is not changed.",
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
            help="Images per batch.",
        ),
    ] = 250,
    normalize: options.Normalize = None,
    download: options.Download = False,
    device: options.Device = "auto",
    arch: options.Arch = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Measure the accuracy of one or more networks, dense or pruned.

    Examples:

      legr evaluate nets/*.safetensors --data cifar10:DIR --recalibrate

      legr evaluate resnet56.th --arch resnet56 --data cifar10:DIR --normalize imagenet
    """
    from legr_cli.commands.evaluate_view import show_scores
    from legr_cli.commands.output import spinner
    from legr_cli.data.dataset import parse_statistics
    from legr_cli.models.network import open_network
    from legr_cli.settings import parse_input
    from legr_cli.training.measure import measure

    if split not in ("test", "val"):
        raise SettingError(f"--split must be test or val, got {split}")
    statistics = parse_statistics(normalize) if normalize else None
    size = parse_input(input_shape) if input_shape else None
    datasets = _Datasets(data, seed, statistics, download)
    rows: list[dict[str, Any]] = []
    with spinner("loading") as update:
        for number, name in enumerate(models, 1):
            update(f"evaluating {name} ({number} of {len(models)})")
            network = open_network(name, arch, classes, size)
            network.model.float()  # images are float32
            score = measure(
                network,
                datasets.open(network),
                split=split,
                recalibrated=recalibrate,
                seed=seed,
                batch_size=batch_size,
                device=device,
            )
            rows.append({"file": name, **score})
    notes = datasets.notes()
    if recalibrate:
        notes.append("BatchNorm statistics were re-estimated, for dense networks as well")
    show_scores(rows, data, split, notes, as_json)


class _Datasets:
    """The dataset as each network needs it, read once for all that preprocess it alike."""

    def __init__(self, spec: str, seed: int, statistics: Any, download: bool) -> None:
        self.spec, self.seed, self.download = spec, seed, download
        self.statistics = statistics  # None: those the network's file records
        self.opened: dict[str, Data] = {}

    def open(self, network: "Network") -> "Data":
        """The dataset at the network's input size and normalization."""
        from legr_cli.data.dataset import open_data

        statistics = self.statistics or network.notes.get("statistics")
        key = repr((network.input_shape, statistics))
        if key not in self.opened:
            self.opened[key] = open_data(
                self.spec,
                network.input_shape,
                seed=self.seed,
                statistics=statistics,
                download=self.download,
            )
        return self.opened[key]

    def notes(self) -> list[str]:
        """How the images were preprocessed, and likely mistakes, each once."""
        from legr_cli.data.dataset import doubts

        lines = [[f"preprocessed as {data.feed}", *doubts(data)] for data in self.opened.values()]
        return list(dict.fromkeys(line for group in lines for line in group))
