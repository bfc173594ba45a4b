"""Long work as people watch it: a bar that moves, or a line now and then where nothing can move."""

import time
from typing import IO

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Column

from legr_cli.commands.output import console

_EVERY = 10.0  # seconds between lines


class ProgressDisplay:
    """A title, a bar and some facts; nothing at all if it is quiet."""

    def __init__(self, total: int, quiet: bool = False, to: IO[str] | None = None) -> None:
        self.total, self.said = total, 0.0
        self.screen = console(quiet=quiet)
        if to is not None:  # whatever stderr is by then
            self.screen.file = to
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(max(4, min(30, self.screen.width - 90))),
            TextColumn("{task.fields[facts]}", markup=False, table_column=Column(no_wrap=True)),
        )
        self.bar = Progress(*columns, console=self.screen, transient=True)
        self.task = self.bar.add_task("beginning", total=total, facts="")

    def __enter__(self) -> "ProgressDisplay":
        if self.screen.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.screen.is_terminal:
            self.bar.stop()

    def say(self, text: str, style: str = "dim") -> None:
        """One line above the bar."""
        self.screen.print(text, style=style)

    def show(self, done: int, title: str, facts: list[str], tell: bool = False) -> None:
        """How far things are, now; `tell`: also where there was a line just before."""
        text, now = " · ".join(facts), time.monotonic()
        if self.screen.is_terminal:
            self.bar.update(self.task, completed=done, description=title, facts=text)
        elif tell or now - self.said >= _EVERY:
            self.said = now
            self.say(f"{title}  {text}")


class Pace:
    """How fast work goes from its first piece on; what it took to begin does not count."""

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None

    def rate(self, done: int) -> float:
        """Pieces a second; 0 while nothing is known."""
        now = time.monotonic()
        if self.first is None:
            self.first = now, done
        begun, before = self.first
        return (done - before) / (now - begun) if done > before else 0.0

    def left(self, done: int, total: int) -> list[str]:
        """`0:52:10 left`, once it is known."""
        rate = self.rate(done)
        return [f"{clock(round((total - done) / rate))} left"] if rate else []


def clock(seconds: int) -> str:
    """`1:02:03`."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
