"""`legr bench`."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legr_cli.commands import options
from legr_cli.commands.options import setting
from legr_cli.errors import BenchError, OutputError, SettingError

if TYPE_CHECKING:
    from legr_cli.deploy.bench_models import BenchModels
    from legr_cli.settings import Bench


def bench(
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="NETWORK",
            show_default=False,
            help="Networks to time: .onnx files, files written by legr, weights files for --arch, "
            "torchvision:NAME or random:NAME; or bench.json files, to show earlier measurements.",
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NETWORK",
            show_default="first NETWORK",
            help="Baseline for latency ratios, such as the dense network; timed with the others.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the results to this .json file.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Plot latency against FLOPs to this .svg, .png or .pdf file.",
        ),
    ] = None,
    threads: Annotated[
        int, setting(options.HARDWARE, "N", "Number of threads that ONNX Runtime uses.")
    ] = 1,
    seconds: Annotated[
        float, setting(options.HARDWARE, "SECONDS", "Measurement time per network.")
    ] = 3.0,
    core: Annotated[
        int | None,
        setting(options.HARDWARE, "N", "CPU core to pin the measurement to.", "fastest core"),
    ] = None,
    ssh: options.Ssh = None,
    python: options.Python = "python3",
    bundle: Annotated[
        Path | None,
        setting(
            options.BOARD,
            "DIR",
            "Do not measure; write the networks and the benchmark script to this folder, for a "
            "board without ssh.",
        ),
    ] = None,
    arch: options.Arch = None,
    weights: options.Weights = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Measure latency for one image at a time, on this machine or a remote board.

    Networks are exported to ONNX, compared with torch, and timed in turns on one core, so that
    latency ratios hold even on a busy machine. With three or more networks, the output also shows
    how much latency each saved FLOP saves.

    Examples:

      legr bench nets/*.safetensors --against dense.pth --arch resnet50

      legr bench small.onnx dense.onnx --ssh me@jetson --out jetson.json
    """
    from legr_cli.commands.bench_view import bundle_and_show, show_measurements
    from legr_cli.deploy.bench_models import BenchModels
    from legr_cli.settings import Bench
    from legr_cli.shapes import parse_input

    settings = Bench(threads=threads, seconds=seconds, core=core)
    chosen = tuple(dict.fromkeys(networks if against is None else [against, *networks]))
    named = BenchModels(chosen, arch, classes, parse_input(input_shape), weights=weights)
    _check_files(out, plot, bundle)
    if bundle is not None:
        if out or plot or ssh:
            raise SettingError("--bundle does not measure: remove --out, --plot and --ssh")
        bundle_and_show(named, settings, bundle)
        return
    if any(name.endswith(".json") for name in chosen):
        found, stopped = _read(chosen, ssh), False
    else:
        found = [_measured(named, settings, ssh, python, need_flops=plot is not None)]
        stopped = "stopped" in found[0]
    show_measurements(found, as_json)
    if stopped:
        raise KeyboardInterrupt("interrupted: only the runs so far are shown; no file was written")
    _write(found, out, plot)


def _check_files(out: Path | None, plot: Path | None, bundle: Path | None) -> None:
    """Check the files to write before any work is done."""
    from legr_cli.files import require_folder

    for option, path in {"--out": out, "--plot": plot, "--bundle": bundle}.items():
        if path is not None:
            require_folder(path, option)
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise OutputError("--plot needs matplotlib, which is not installed")
    if out is not None and (out.suffix != ".json" or out.is_dir()):
        raise OutputError(f"--out {out}: name a file that ends in .json")
    if plot is not None and (plot.suffix not in (".svg", ".png", ".pdf") or plot.is_dir()):
        raise OutputError(f"--plot {plot}: name a file that ends in .svg, .png or .pdf")
    if bundle is not None and bundle.exists() and not bundle.is_dir():
        raise OutputError(f"--bundle {bundle} is a file: name a folder")


def _measured(
    named: "BenchModels", settings: "Bench", ssh: str | None, python: str, need_flops: bool
) -> dict[str, Any]:
    """Measure, with a progress bar; Ctrl-C leaves what was measured so far."""
    from legr_cli.commands.invocation import command_line
    from legr_cli.commands.progress import ProgressDisplay
    from legr_cli.deploy.bench import bench_networks

    with ProgressDisplay() as display:
        measured = bench_networks(
            named, settings, ssh, python, need_flops=need_flops, progress=display.report
        )
    return {**measured, "command": command_line()}


def _read(names: tuple[str, ...], ssh: str | None) -> list[dict[str, Any]]:
    """Read earlier measurements."""
    from legr_cli.deploy.bench_json import read_bench

    files = [name for name in names if name.endswith(".json")]
    if len(files) < len(names):
        raise SettingError(f"{files[0]} is a measurement: pass only networks or only measurements")
    if ssh:
        raise SettingError("--ssh has no effect on earlier measurements: pass networks instead")
    return [read_bench(Path(file)) for file in files]


def _write(found: list[dict[str, Any]], out: Path | None, plot: Path | None) -> None:
    """Write the requested files."""
    import json

    from legr_cli.files import staged

    if out is not None and len(found) > 1:
        raise BenchError("--out takes a single measurement: pass one bench.json")
    with staged() as stage:
        if out is not None:
            text = json.dumps(found[0], indent=1, allow_nan=False) + "\n"
            stage.file(out).write_text(text, encoding="utf-8")
        if plot is not None:
            from legr_cli.reports.charts import latency_by_flops
            from legr_cli.reports.figures import save_plot
            from legr_cli.reports.reading import bench_record

            drawn = latency_by_flops([bench_record(data) for data in found], [])
            if not any(series.points for series in drawn.series):
                raise BenchError(
                    "--plot needs FLOPs, which these networks do not record: export them with legr"
                )
            save_plot(drawn, stage.file(plot), plot.suffix[1:])
