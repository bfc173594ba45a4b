"""Progress of long-running work: a live bar on a terminal, an occasional line elsewhere."""

import contextlib
import time
from collections.abc import Iterator
from typing import IO

from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from legr_cli.commands.invocation import resume_command
from legr_cli.commands.output import console
from legr_cli.progress import Event, Message, Progress, Status

_INTERVAL = 10.0  # seconds between lines where there is no terminal


class ProgressDisplay:
    """Shows events on stderr: a title, a bar and some facts."""

    def __init__(self, file: IO[str] | None = None) -> None:
        self.last_line, self.pace = 0.0, Pace()
        self.screen = console()
        if file is not None:  # stays the same if sys.stderr is redirected later
            self.screen.file = file
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(max(4, min(30, self.screen.width - 90))),
            TextColumn("{task.fields[facts]}", markup=False, table_column=Column(no_wrap=True)),
        )
        self.bar = Bar(*columns, console=self.screen, transient=True)
        self.task = self.bar.add_task("starting", total=None, facts="")

    def __enter__(self) -> "ProgressDisplay":
        if self.screen.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.screen.is_terminal:
            self.bar.stop()

    def report(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Message):
            self.log(event.text)
        elif isinstance(event, Status):
            self.bar.update(self.task, description=event.text, total=None, facts="")
        else:
            self._update(event)

    def log(self, text: str, style: str = "dim") -> None:
        """Print one line above the bar."""
        self.screen.print(text, style=style, soft_wrap=True)

    def _update(self, event: Progress) -> None:
        """Show how far the work has come; milestones are printed even right after another line."""
        left = self.pace.remaining(event) if event.done > event.resumed else []
        text, now = " · ".join([*event.facts, *left]), time.monotonic()
        if self.screen.is_terminal:
            self.bar.update(
                self.task,
                completed=event.done,
                total=event.total,
                description=event.title,
                facts=text,
            )
        elif event.milestone or now - self.last_line >= _INTERVAL:
            self.last_line = now
            self.log(f"{event.title}  {text}")


@contextlib.contextmanager
def resumable() -> Iterator[ProgressDisplay]:
    """A progress display; Ctrl-C says how to resume the command."""
    try:
        with ProgressDisplay() as display:
            yield display
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(
            f"{str(stop) or 'interrupted'}; resume with: {resume_command()}"
        ) from None


class Pace:
    """Throughput measured from the first completed item, so that startup time does not count."""

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None

    def remaining(self, event: Progress) -> list[str]:
        """`0:52:10 left`, once it is known."""
        now = time.monotonic()
        if self.first is None:
            self.first = now, event.done
        started, done_before = self.first
        if event.done <= done_before:
            return []
        seconds = (event.total - event.done) * (now - started) / (event.done - done_before)
        return [f"{format_duration(round(seconds))} left"]


def format_duration(seconds: int) -> str:
    """`1:02:03`."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
