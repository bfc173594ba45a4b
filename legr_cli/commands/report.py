"""`legr report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legr_cli.errors import OutputError, ReportError

if TYPE_CHECKING:
    from legr_cli.files import Staged
    from legr_cli.report.records import ReportData

_PICTURES = "Pictures for papers and slides"


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR…",
            show_default=False,
            help="Networks, ranking.json, bench.json, compare.json, or folders with them.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The page, one file that needs nothing else.")
    ] = Path("report.html"),
    png: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=False,
            rich_help_panel=_PICTURES,
            help="Every picture as a .png, in this folder.",
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=False,
            rich_help_panel=_PICTURES,
            help="Every picture as an .svg, in this folder.",
        ),
    ] = None,
    animate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            rich_help_panel=_PICTURES,
            help="The search as it went, as a .gif.",
        ),
    ] = None,
) -> None:
    """Put networks, their accuracy and latency, and the search on one page, to choose from.

    The page works from a file and without a network; picking a point shows its row. It has the
    accuracy by FLOPs and by latency, latency by FLOPs, methods side by side and what they cost, the
    search, channels kept by layer, α and κ, all networks with links to their files, and the
    commands that made them.

    Examples:

      legr report nets tuned bench.json ranking.json --out report.html

      legr report results --png figures --animate search.gif
    """
    from legr_cli.commands import output
    from legr_cli.files import staged
    from legr_cli.report.collect import collect
    from legr_cli.report.page import page

    _check(out, png, svg, animate)
    data = collect(paths)
    with staged() as files:
        files.file(out).write_text(page(data, out.parent), encoding="utf-8")
        made = [out, *_pictures(files, data, {"png": png, "svg": svg}, animate)]
    for path in made:
        output.print_result(str(path))


def _check(out: Path, png: Path | None, svg: Path | None, animate: Path | None) -> None:
    """Say what is wrong with the files to write before any work is done."""
    from legr_cli.files import require_folder

    if out.suffix not in (".html", ".htm") or out.is_dir():
        raise OutputError(f"--out {out}: name a file that ends in .html")
    if animate is not None and (animate.suffix != ".gif" or animate.is_dir()):
        raise OutputError(f"--animate {animate}: name a file that ends in .gif")
    for path in (out, png, svg, animate):
        if path is not None:
            require_folder(path)
    for folder in (png, svg):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is a file: name a folder")


def _pictures(
    files: "Staged", data: "ReportData", folders: dict[str, Path | None], animation: Path | None
) -> list[Path]:
    """The pictures that were asked for."""
    from legr_cli.report.charts import bar_charts, heatmaps, plots
    from legr_cli.report.figures import animate, save_bars, save_heatmap, save_plot

    made, drawn = [], plots(data)
    for kind, folder in folders.items():
        if folder is None:
            continue
        files.folder(folder)
        for plot in drawn:
            made.append(folder / f"{plot.key}.{kind}")
            save_plot(plot, files.file(made[-1]), kind)
        for chart in bar_charts(data):
            made.append(folder / f"{chart.key}.{kind}")
            save_bars(chart, files.file(made[-1]), kind)
        for heatmap in heatmaps(data):
            made.append(folder / f"{heatmap.key}.{kind}")
            save_heatmap(heatmap, files.file(made[-1]), kind)
    if animation is not None:
        searches = [plot for plot in drawn if plot.key.startswith("search-")]
        if not searches:
            raise ReportError("--animate needs a search: name a ranking.json and its history")
        animate(searches[0], files.file(animation))
        made.append(animation)
    return made
