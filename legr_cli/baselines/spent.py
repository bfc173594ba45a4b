"""What a method has cost: seconds, and what does not depend on the machine."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from legr_cli.journal import Line


@dataclass(frozen=True)
class Spent:
    """Work of one kind, summed up."""

    seconds: float = 0.0
    steps: int = 0  # of gradient descent
    images: int = 0  # that went through the network, forwards at least

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.seconds + other.seconds, self.steps + other.steps, self.images + other.images
        )

    def line(self) -> Line:
        """As a journal has it."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}


def total(parts: "Iterable[Spent]") -> Spent:
    """All of it."""
    return sum(parts, Spent())


def read(line: Line) -> Spent:
    """From a journal."""
    return Spent(line["seconds"], line["steps"], line["images"])
