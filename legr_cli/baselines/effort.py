"""The cost of a method: wall-clock time, and machine-independent counts of steps and images."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from legr_cli.journal import Line


@dataclass(frozen=True)
class Effort:
    """Seconds, optimizer steps and images spent on a piece of work."""

    seconds: float = 0.0
    steps: int = 0  # optimizer steps
    images: int = 0  # images passed through the network, forward or forward and backward

    def __add__(self, other: "Effort") -> "Effort":
        return Effort(
            self.seconds + other.seconds, self.steps + other.steps, self.images + other.images
        )

    def line(self) -> Line:
        """The object that journals store."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}

    @classmethod
    def from_line(cls, line: Line) -> "Effort":
        """Read from a journal line, which may have other keys as well."""
        return cls(line["seconds"], line["steps"], line["images"])


def total(efforts: Iterable[Effort]) -> Effort:
    """The sum."""
    return sum(efforts, Effort())
