"""Progress of long-running work: a live bar on a terminal, an occasional line elsewhere."""

import time
from typing import IO

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Column

from legr_cli.commands.output import console

_INTERVAL = 10.0  # seconds between lines where there is no terminal


class ProgressDisplay:
    """A title, a bar and some facts on stderr; prints nothing if `quiet`."""

    def __init__(self, total: int, quiet: bool = False, file: IO[str] | None = None) -> None:
        self.total, self.last_line = total, 0.0
        self.screen = console(quiet=quiet)
        if file is not None:  # stays the same if sys.stderr is redirected later
            self.screen.file = file
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(max(4, min(30, self.screen.width - 90))),
            TextColumn("{task.fields[facts]}", markup=False, table_column=Column(no_wrap=True)),
        )
        self.bar = Progress(*columns, console=self.screen, transient=True)
        self.task = self.bar.add_task("starting", total=total, facts="")

    def __enter__(self) -> "ProgressDisplay":
        if self.screen.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.screen.is_terminal:
            self.bar.stop()

    def log(self, text: str, style: str = "dim") -> None:
        """Print one line above the bar."""
        self.screen.print(text, style=style)

    def update(self, done: int, title: str, facts: list[str], always: bool = False) -> None:
        """Show how far the work is; `always` prints a line even right after another."""
        text, time_now = " · ".join(facts), time.monotonic()
        if self.screen.is_terminal:
            self.bar.update(self.task, completed=done, description=title, facts=text)
        elif always or time_now - self.last_line >= _INTERVAL:
            self.last_line = time_now
            self.log(f"{title}  {text}")


class Pace:
    """Throughput measured from the first completed item, so that startup time does not count."""

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None

    def rate(self, done: int) -> float:
        """Items per second; 0 while unknown."""
        time_now = time.monotonic()
        if self.first is None:
            self.first = time_now, done
        started, done_before = self.first
        return (done - done_before) / (time_now - started) if done > done_before else 0.0

    def remaining(self, done: int, total: int) -> list[str]:
        """`0:52:10 left`, once it is known."""
        rate = self.rate(done)
        return [f"{format_duration(round((total - done) / rate))} left"] if rate else []


def format_duration(seconds: int) -> str:
    """`1:02:03`."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
