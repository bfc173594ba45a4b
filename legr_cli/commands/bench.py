"""`legr bench`."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legr_cli.commands import options
from legr_cli.commands.invocation import command_line
from legr_cli.errors import BenchError, OutputError, SettingError

if TYPE_CHECKING:
    from legr_cli.deploy.bench import Asked
    from legr_cli.settings import Bench


def bench(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            show_default=False,
            help="Networks to time: .onnx, files that legr wrote, checkpoints of --arch, "
            "torchvision:NAME, random:NAME; or the bench.json of measurements, to see them again.",
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            show_default="the first",
            help="What ratios are to, such as the dense network; it is timed with the others.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Write everything to a bench.json."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Draw latency against FLOPs: an .svg, .png or .pdf.",
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(metavar="N", rich_help_panel=options.MACHINE, help="Of the runtime.")
    ] = 1,
    seconds: Annotated[
        float, typer.Option(metavar="S", rich_help_panel=options.MACHINE, help="For each network.")
    ] = 3.0,
    core: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="the fastest",
            rich_help_panel=options.MACHINE,
            help="The core to stay on.",
        ),
    ] = None,
    ssh: options.Ssh = None,
    python: options.Python = "python3",
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=False,
            rich_help_panel=options.BOARD,
            help="Measure nothing: write the networks and the measuring program to a folder, for a "
            "board without ssh.",
        ),
    ] = None,
    arch: options.Arch = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Measure how long one image takes, on one thread, here or on a board.

    Networks become ONNX (each is compared with torch), and take turns on one core, so that ratios
    hold on a machine that is busy with other things, too. With three networks or more you see how
    much latency a saved FLOP saves.

    Examples:

      legr bench nets/*.safetensors --against dense.pth --arch resnet50

      legr bench small.onnx dense.onnx --ssh me@jetson --out jetson.json
    """
    from legr_cli.deploy.bench import Asked
    from legr_cli.settings import Bench, parse_input

    settings = Bench(threads=threads, seconds=seconds, core=core)
    chosen = tuple(dict.fromkeys(models if against is None else [against, *models]))
    asked = Asked(chosen, arch, classes, parse_input(input_shape) if input_shape else None)
    _check_files(out, plot, bundle)
    if bundle is not None:
        if out or plot or ssh:
            raise SettingError("--bundle measures nothing: leave --out, --plot and --ssh out")
        _write_bundle(asked, settings, bundle)
        return
    old = any(model.endswith(".json") for model in chosen)
    found = _read(chosen, ssh) if old else [_measured(asked, settings, ssh, python, bool(plot))]
    _show(found, as_json)
    if found[0].get("stopped") and not old:
        raise KeyboardInterrupt("stopped: these are the runs until then; no file was written")
    _write(found, out, plot)


def _check_files(out: Path | None, plot: Path | None, bundle: Path | None) -> None:
    """Say what is wrong with the files to write before any work is done."""
    from legr_cli.files import require_folder

    for option, path in {"--out": out, "--plot": plot, "--bundle": bundle}.items():
        if path is not None:
            require_folder(path, option)
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise OutputError("--plot needs matplotlib, which is not installed here")
    if out is not None and (out.suffix != ".json" or out.is_dir()):
        raise OutputError(f"--out {out}: name a file that ends in .json")
    if plot is not None and (plot.suffix not in (".svg", ".png", ".pdf") or plot.is_dir()):
        raise OutputError(f"--plot {plot}: name a file that ends in .svg, .png or .pdf")
    if bundle is not None and bundle.exists() and not bundle.is_dir():
        raise OutputError(f"--bundle {bundle} is a file: name a folder")


def _write_bundle(asked: "Asked", settings: "Bench", folder: Path) -> None:
    """Everything for a board in a folder, and its names on stdout."""
    from legr_cli.commands.output import busy, line
    from legr_cli.deploy.bench import write_bundle

    with busy("writing the bundle") as now:
        written = write_bundle(asked, settings, folder, now)
    for path in written:
        line(str(path))


def _read(models: tuple[str, ...], ssh: str | None) -> list[dict[str, Any]]:
    """Earlier measurements."""
    from legr_cli.deploy.bench import read_bench

    files = [model for model in models if model.endswith(".json")]
    if len(files) < len(models):
        raise SettingError(f"{files[0]} is a measurement: name networks, or measurements to see")
    if ssh:
        raise SettingError("--ssh measures networks: these were measured before")
    return [read_bench(Path(file)) for file in files]


def _measured(
    asked: "Asked", settings: "Bench", ssh: str | None, python: str, need_flops: bool
) -> dict[str, Any]:
    """Measure, with something to look at."""
    from legr_cli.commands.progress import ProgressDisplay
    from legr_cli.deploy.bench import bench as measure
    from legr_cli.deploy.board import Board, place_for

    place = place_for(ssh, python)
    whole = round(len(asked.models) * settings.seconds)
    with ProgressDisplay(100) as display:
        display.show(0, "beginning", [f"on {place.name}"])
        with Board(place, settings.threads, settings.core) as board:
            found = measure(
                board,
                asked,
                settings,
                lambda text: display.show(0, text, [f"on {place.name}"]),
                lambda done: display.show(
                    round(done * 100), "measuring", [f"{max(0, round(whole * (1 - done)))} s left"]
                ),
                need_flops,
            )
    return {**found, "command": command_line()}


def _show(found: list[dict[str, Any]], as_json: bool) -> None:
    """A table, or JSON, on stdout."""
    from legr_cli.commands import output
    from legr_cli.commands.bench_view import table

    if as_json:
        output.emit(found[0] if len(found) == 1 else {"measurements": found})
        return
    for whole in found:
        table(whole)


def _write(found: list[dict[str, Any]], out: Path | None, plot: Path | None) -> None:
    """The files that were asked for."""
    import json

    from legr_cli.files import staged

    if out is not None and len(found) > 1:
        raise BenchError("--out is for one measurement")
    with staged() as stage:
        if out is not None:
            text = json.dumps(found[0], indent=1, allow_nan=False) + "\n"
            stage.file(out).write_text(text, encoding="utf-8")
        if plot is not None:
            from legr_cli.report.charts import latency_by_flops
            from legr_cli.report.figures import save_plot

            drawn = latency_by_flops(found, [])
            if not any(series.dots for series in drawn.series):
                raise BenchError(
                    "--plot needs FLOPs, which these networks do not tell: export them with legr"
                )
            save_plot(drawn, stage.file(plot), plot.suffix[1:])
