"""What people see: tables and progress on stderr, results on stdout."""

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import torch

_STEPS = " ▁▂▃▄▅▆▇█"


def console(stderr: bool = True, quiet: bool = False) -> Console:
    """Where people look; what goes to a file or a pipe is not cut to a width."""
    screen = Console(stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = 160
    return screen


@contextlib.contextmanager
def busy(text: str) -> Iterator[Callable[[str], None]]:
    """Something that moves on stderr; what it gives is called with what is being done now."""
    with console().status(Text(text)) as status:
        yield lambda now: status.update(Text(now))  # as it is: names are no markup


def half_helps(device: "torch.device", quiet: bool = False) -> bool:
    """Whether `--amp` is of use on this device; if not, say so."""
    from legr_cli.training.devices import half_precision

    if half_precision(device) is not None:
        return True
    text = f"--amp would be slower on this {device.type}: it is left out"
    console(quiet=quiet).print(text, style="dim")
    return False


def table(title: str, *columns: str, left: Iterable[str] = ()) -> Table:
    """A plain table whose numbers are on the right."""
    made = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in columns:
        justify: Literal["left", "right"] = "left" if column in set(left) else "right"
        name = column in (
            "layer",
            "network",
        )  # a long name goes on in the next line; numbers are never cut
        made.add_column(column, justify=justify, no_wrap=not name, overflow="fold")
    return made


def put(screen: Console, made: Table) -> None:
    """Print a table whole: where it is too wide, lines are longer and no number is cut."""
    needed = Measurement.get(screen, screen.options.update(max_width=10_000), made).maximum
    width, screen.width = screen.width, max(screen.width, needed)
    screen.print(made)
    screen.width = width


def emit(data: Any) -> None:
    """One JSON object on stdout."""
    json.dump(data, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def line(text: str) -> None:
    """One result on stdout."""
    typer.echo(text)


def count(number: float) -> str:
    """`4.09 G`, `25.6 M`, `512 `: ready for a unit, and never broken over two lines."""
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            digits = f"{number / size:.3g}" if number < 999.5 * size else f"{number / size:.0f}"
            return f"{digits}\N{NO-BREAK SPACE}{prefix}"
    return f"{number:.0f}\N{NO-BREAK SPACE}"


def bar(shares: list[float], width: int) -> str:
    """A character a layer, as high as the share of its channels that stay; few if it is narrow."""
    width = max(8, width)
    if len(shares) > width:
        edges = [round(i * len(shares) / width) for i in range(width + 1)]
        parts = [shares[a:b] for a, b in itertools.pairwise(edges)]
        shares = [sum(part) / len(part) for part in parts]
    return "".join(_STEPS[max(1, round(share * 8))] for share in shares)
