"""A search as people watch it: a bar that moves, or a line now and then where nothing can move."""

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from legr_cli.commands.show import console

if TYPE_CHECKING:
    from legr_cli.search.learn import Progress as State

_EVERY = 10.0  # seconds between lines


class Live:
    """Candidate n of E, best and latest, candidates an hour, time left, cache hits."""

    def __init__(self, total: int) -> None:
        self.total, self.start, self.said = total, time.monotonic(), 0.0
        self.screen = console()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(30),
            TextColumn("{task.fields[facts]}"),
        )
        self.bar = Progress(*columns, TimeElapsedColumn(), console=self.screen, transient=True)
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
        facts = _facts(state, self.total, now - self.start)
        title = f"candidate {state.done}/{self.total}"
        if self.screen.is_terminal:
            self.bar.update(self.task, completed=state.done, description=title, facts=facts)
        elif now - self.said >= _EVERY or state.done == self.total:
            self.said = now
            self.screen.print(f"{title}  {facts}", style="dim")


def _facts(state: "State", total: int, elapsed: float) -> str:
    """`best 83.9 % (31) · latest 81.0 % · 412/h · 0:52:10 left · 2 known before`."""
    fresh = state.done - state.recorded
    parts = [
        f"best {state.best['accuracy']:.2%} (candidate {state.best['candidate']})",
        f"latest {state.latest['accuracy']:.2%}",
    ]
    if fresh > 0 and elapsed > 0:
        rate = fresh / elapsed
        left = round((total - state.done) / rate)
        parts += [
            f"{rate * 3600:.0f}/h",
            f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left",
        ]
    if state.cached:
        parts.append(f"{state.cached} known before")
    return " · ".join(parts)
