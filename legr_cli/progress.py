"""What a long-running function reports while it works, to whoever passed `progress`.

Every event has a readable `str`, so `progress=print` is enough to follow a run.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """What is being done right now, such as "loading the network"."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Message:
    """Something to keep on the screen, such as a likely mistake."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    done: int  # of `total` pieces of work
    total: int
    title: str  # "candidate 31/400"
    facts: tuple[str, ...] = ()  # "best 83.90% (#31)", "latest 81.00%"
    milestone: bool = False  # worth a line even where lines are few
    resumed: int = 0  # of `done`, completed by an earlier run

    def __str__(self) -> str:
        return "  ".join([self.title, " · ".join(self.facts)]) if self.facts else self.title


Event = Status | Message | Progress
Report = Callable[[Event], None]


def silent(_event: Event) -> None:
    """Report nothing: what functions do by default."""
