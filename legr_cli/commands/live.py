"""A search as people watch it: a bar that moves, or a line now and then where nothing can move."""

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from legr_cli.commands.show import console

if TYPE_CHECKING:
    from legr_cli.search.learn import Progress as State

_EVERY = 10.0  # seconds between lines


class Live:
    """Candidate n of E, best and latest, candidates an hour, time left, cache hits."""

    def __init__(self, total: int) -> None:
        self.total, self.said = total, 0.0
        self.first: tuple[float, int] | None = None  # when the first new candidate was done
        self.screen = console()
        columns = (
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(max(4, min(30, self.screen.width - 90))),
            TextColumn("{task.fields[facts]}", table_column=Column(no_wrap=True)),
        )
        self.bar = Progress(*columns, console=self.screen, transient=True)
        self.task = self.bar.add_task("candidate 0", total=total, facts="")

    def __enter__(self) -> "Live":
        if self.screen.is_terminal:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.screen.is_terminal:
            self.bar.stop()

    def say(self, text: str) -> None:
        """One line above the bar."""
        self.screen.print(text, style="dim")

    def show(self, state: "State") -> None:
        """The state of the search, now."""
        now = time.monotonic()
        if state.done > state.recorded and self.first is None:
            self.first = now, state.done
        rate = 0.0  # workers take their time to begin: it does not count
        if self.first is not None and state.done > self.first[1]:
            rate = (state.done - self.first[1]) / (now - self.first[0])
        facts = _facts(state, self.total, rate)
        title = f"candidate {state.done}/{self.total}"
        if self.screen.is_terminal:
            self.bar.update(self.task, completed=state.done, description=title, facts=facts)
        elif (now - self.said >= _EVERY and rate) or state.done in (1, self.total):
            self.said = now
            self.screen.print(f"{title}  {facts}", style="dim")


def _facts(state: "State", total: int, rate: float) -> str:
    """`best 83.90% (#31) · latest 81.00% · 0:52:10 left · 412/h · 2 repeats`."""
    parts = [
        f"best {state.best['accuracy']:.2%} (#{state.best['candidate'] + 1})",
        f"latest {state.latest['accuracy']:.2%}",
    ]
    if rate:
        left = round((total - state.done) / rate)
        clock = f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
        parts += [f"{clock} left", f"{rate * 3600:.0f}/h"]
    if state.cached:
        parts.append(f"{state.cached} repeats")
    return " · ".join(parts)
