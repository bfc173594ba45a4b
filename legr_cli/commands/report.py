"""`legr report`."""

from pathlib import Path
from typing import Annotated

import typer

from legr_cli.commands import options

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
        Path,
        typer.Option(metavar="FILE", help="Page to write, a single self-contained .html file."),
    ] = Path("report.html"),
    png: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=False,
            rich_help_panel=_PICTURES,
            help="Folder to write every picture to, as .png.",
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=False,
            rich_help_panel=_PICTURES,
            help="Folder to write every picture to, as .svg.",
        ),
    ] = None,
    animate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            rich_help_panel=_PICTURES,
            help="Animation of the search to write, a .gif file.",
        ),
    ] = None,
    as_json: options.Json = False,
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
    from legr_cli.reports.report import report as write_report

    written = write_report(paths, out, png=png, svg=svg, animate=animate)
    if as_json:
        output.print_json({"files": [str(path) for path in written]})
        return
    for path in written:
        output.print_result(str(path))
