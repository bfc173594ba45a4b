"""Printing for all commands: results go to stdout, progress and notes to stderr."""

import contextlib
import itertools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_STEPS = " ▁▂▃▄▅▆▇█"


def console(stderr: bool = True) -> Console:
    """A console for plain text; output to a file or pipe is not wrapped at 80 columns."""
    screen = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = 160
    return screen


@contextlib.contextmanager
def spinner(text: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner on stderr; yields a function that changes its text."""
    with console().status(Text(text)) as status:
        yield lambda text: status.update(Text(text))  # Text: names must not be read as markup


def table(title: str, *columns: str, left: Iterable[str] = ()) -> Table:
    """A plain table; columns not in `left` are right-aligned."""
    made = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in columns:
        justify: Literal["left", "right"] = "left" if column in set(left) else "right"
        wraps = column in ("layer", "network")  # long names wrap, numbers never do
        made.add_column(column, justify=justify, no_wrap=not wraps, overflow="fold")
    return made


def print_table(screen: Console, table: Table) -> None:
    """Print a table in full: if it is wider than the screen, lines overflow instead of cutting."""
    needed = Measurement.get(screen, screen.options.update(max_width=10_000), table).maximum
    width, screen.width = screen.width, max(screen.width, needed)
    screen.print(table)
    screen.width = width


def print_json(data: Any) -> None:
    """Print one JSON object to stdout."""
    json.dump(data, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def print_result(text: object) -> None:
    """Print one line to stdout, such as the name of a file that was written."""
    typer.echo(str(text))


def print_notes(*notes: str) -> None:
    """Print notes to stderr, one line each."""
    screen = console()
    for note in notes:
        screen.print(note, style="dim", soft_wrap=True)


class _Notes(logging.Handler):
    """Prints what the library logs as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        print_notes(record.getMessage())


def show_logged_notes() -> None:
    """Show on stderr what the library notes while it works, such as which weights it took."""
    logger = logging.getLogger("legr_cli")
    leads = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun starts
    if leads and not any(isinstance(handler, _Notes) for handler in logger.handlers):
        logger.addHandler(_Notes())
        logger.setLevel(logging.INFO)


def format_count(number: float) -> str:
    """`4.09 G`, `25.6 M` or `512 `, ready for a unit; its space does not break across lines."""
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            digits = f"{number / size:.3g}" if number < 999.5 * size else f"{number / size:.0f}"
            return f"{digits}\N{NO-BREAK SPACE}{prefix}"
    return f"{number:.0f}\N{NO-BREAK SPACE}"


def sparkline(shares: list[float], width: int) -> str:
    """One character per layer, as tall as the share of channels kept; averaged to fit `width`."""
    width = max(8, width)
    if len(shares) > width:
        edges = [round(i * len(shares) / width) for i in range(width + 1)]
        parts = [shares[a:b] for a, b in itertools.pairwise(edges)]
        shares = [sum(part) / len(part) for part in parts]
    return "".join(_STEPS[max(1, round(share * 8))] for share in shares)
