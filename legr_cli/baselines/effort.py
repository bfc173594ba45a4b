"""What a method has cost: seconds, and what does not depend on the machine."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from legr_cli.journal import Line


@dataclass(frozen=True)
class Effort:
    """Work of one kind, summed up."""

    seconds: float = 0.0
    steps: int = 0  # of gradient descent
    images: int = 0  # that went through the network, forwards at least

    def __add__(self, other: "Effort") -> "Effort":
        return Effort(
            self.seconds + other.seconds, self.steps + other.steps, self.images + other.images
        )

    def line(self) -> Line:
        """As a journal has it."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}


def total(parts: "Iterable[Effort]") -> Effort:
    """All of it."""
    return sum(parts, Effort())


def read(line: Line) -> Effort:
    """From a journal."""
    return Effort(line["seconds"], line["steps"], line["images"])
