"""`legr_cli.report`: networks, rankings, measurements and comparisons → one HTML page."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from legr_cli.arguments import as_path, as_tuple
from legr_cli.errors import OutputError, ReportError
from legr_cli.files import Staged, require_folder, staged
from legr_cli.reports.charts import bar_charts, heatmaps, plots
from legr_cli.reports.collect import collect
from legr_cli.reports.page import page
from legr_cli.reports.records import ReportData


def report(
    paths: Sequence[str | PathLike[str]],
    out: str | PathLike[str] = "report.html",
    *,
    png: str | PathLike[str] | None = None,
    svg: str | PathLike[str] | None = None,
    animate: str | PathLike[str] | None = None,
) -> list[Path]:
    """Show networks, their scores and latency, searches and comparisons on one HTML page.

    Args:
        paths: Networks, ranking.json, bench.json and compare.json files, or folders of them.
        out: The page to write; ends in `.html`.
        png: Folder to write every chart to as a `.png` file.
        svg: Folder to write every chart to as an `.svg` file.
        animate: A `.gif` file to write an animation of the search to.

    Returns:
        The files written, starting with the page.

    Raises:
        ReportError: A file is missing or damaged, or there is nothing to show.
        OutputError: A file cannot be written.
        SettingError: An argument has the wrong type.

    Example:
        >>> legr_cli.report(["nets", "bench.json"], "report.html")
        [PosixPath('report.html')]
    """
    target = as_path(out, "out")
    folders = {"png": _path(png, "png"), "svg": _path(svg, "svg")}
    animation = _path(animate, "animate")
    _check(target, folders, animation)
    if isinstance(paths, str | PathLike):
        paths = [paths]
    data = collect([as_path(path, "each of paths") for path in as_tuple(paths, "paths")])
    with staged() as files:
        files.file(target).write_text(page(data, target.parent), encoding="utf-8")
        return [target, *_save_charts(files, data, folders, animation)]


def _path(path: str | PathLike[str] | None, name: str) -> Path | None:
    """Convert an argument to a path; None stays None."""
    return None if path is None else as_path(path, name)


def _check(out: Path, folders: dict[str, Path | None], animation: Path | None) -> None:
    """Raise before any work is done if a file or folder cannot be written."""
    if out.suffix not in (".html", ".htm") or out.is_dir():
        raise OutputError(f"--out {out}: name a file that ends in .html")
    if animation is not None and (animation.suffix != ".gif" or animation.is_dir()):
        raise OutputError(f"--animate {animation}: name a file that ends in .gif")
    for path in (out, *folders.values(), animation):
        if path is not None:
            require_folder(path)
    for folder in folders.values():
        if folder is not None and folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is a file: name a folder")


def _save_charts(
    files: Staged, data: ReportData, folders: dict[str, Path | None], animation: Path | None
) -> list[Path]:
    """Write the charts in the formats requested; return the files."""
    from legr_cli.reports.figures import animate, save_bars, save_heatmap, save_plot

    written, drawn = list[Path](), plots(data)
    for kind, folder in folders.items():
        if folder is None:
            continue
        files.folder(folder)
        for plot in drawn:
            written.append(folder / f"{plot.key}.{kind}")
            save_plot(plot, files.file(written[-1]), kind)
        for chart in bar_charts(data):
            written.append(folder / f"{chart.key}.{kind}")
            save_bars(chart, files.file(written[-1]), kind)
        for heatmap in heatmaps(data):
            written.append(folder / f"{heatmap.key}.{kind}")
            save_heatmap(heatmap, files.file(written[-1]), kind)
    if animation is not None:
        searches = [plot for plot in drawn if plot.key.startswith("search-")]
        if not searches:
            raise ReportError(
                "--animate needs a search: pass a ranking.json that has its history next to it"
            )
        animate(searches[0], files.file(animation))
        written.append(animation)
    return written
