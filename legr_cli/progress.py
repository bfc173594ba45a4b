"""Progress events that long-running functions pass to their `progress` callback.

Every event has a readable `str`, so `progress=print` is enough to follow a run.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from legr_cli.errors import SettingError


@dataclass(frozen=True)
class Status:
    """The current step, such as "loading the network"; replaces the previous one."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Message:
    """A line to keep on the screen, such as a warning about a likely mistake."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Progress:
    """How much of a run is done."""

    done: int  # of `total`
    total: int
    title: str  # "candidate 31/400"
    facts: tuple[str, ...] = ()  # "best 83.90% (#31)", "latest 81.00%"
    milestone: bool = False  # to be shown even where output is kept short
    resumed: int = 0  # number of `done` that an earlier run completed

    def __str__(self) -> str:
        return "  ".join([self.title, " · ".join(self.facts)]) if self.facts else self.title


Event = Status | Message | Progress
Report = Callable[[Event], None]


def silent(_event: Event) -> None:
    """Ignore events; the default progress callback."""


def reporting(progress: Report | None) -> Report:
    """The callback that a public function was given; `silent` if there is none."""
    if progress is not None and not callable(progress):
        kind = type(progress).__name__
        raise SettingError(f"progress must be a function such as print, got {kind}")
    return progress or silent


@contextlib.contextmanager
def interruptible(done: Callable[[], str]) -> Iterator[None]:
    """Make Ctrl-C say how much is done, such as `"3 of 10 epochs"`."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted after {done()}") from None


def resume_text(done: int, total: int, unit: str) -> str:
    """What a resumed run starts from: `resuming after 3 of 10 epochs`."""
    if not done:
        return "nothing to resume: starting from the beginning"
    return f"resuming after {done} of {total} {unit}"
