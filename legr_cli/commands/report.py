"""`legr report`."""

from pathlib import Path
from typing import Annotated

import typer

from legr_cli.commands import options
from legr_cli.commands.options import setting

_FIGURES = "Figures for papers and slides"


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR",
            show_default=False,
            help="Networks, ranking.json, bench.json and compare.json files, or folders of them.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Page to write, a single self-contained .html file."),
    ] = Path("report.html"),
    png: Annotated[
        Path | None, setting(_FIGURES, "DIR", "Folder to write every figure to, as a .png file.")
    ] = None,
    svg: Annotated[
        Path | None, setting(_FIGURES, "DIR", "Folder to write every figure to, as an .svg file.")
    ] = None,
    animate: Annotated[
        Path | None,
        setting(_FIGURES, "FILE", "Animation of the search to write, a .gif file."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show networks, their scores and latency, and the search on one HTML page.

    The page plots accuracy (or another task's score) and latency against FLOPs, compares methods
    and what they cost, and shows the search, the channels kept in each layer, and α and κ. A table
    lists all networks with links to their files and the commands that made them; click a point to
    find its row. The page is a single file that works offline.

    Examples:

      legr report nets tuned bench.json ranking.json --out report.html

      legr report results --png figures --animate search.gif
    """
    from legr_cli.commands import output
    from legr_cli.reports.report import report as write_report

    written = write_report(paths, out, png=png, svg=svg, animate=animate)
    if as_json:
        output.print_json({"files": [str(path) for path in written]})
        return
    for path in written:
        output.print_result(str(path))
