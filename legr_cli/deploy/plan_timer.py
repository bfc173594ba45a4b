"""Times plans of a network that is being pruned, each beside the dense one."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from legr_cli.channels import apply
from legr_cli.channels.units import Kept
from legr_cli.deploy.board import Board
from legr_cli.deploy.export import exported
from legr_cli.latency import Timing
from legr_cli.pruning import Analysis

SECONDS = 1.5  # for each of the two networks


class PlanTimer:
    """A board that has the dense network and times plans; it measures none twice."""

    def __init__(
        self, board: Board, analysis: Analysis, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.board, self.analysis, self.say = board, analysis, say
        self.timings: dict[bytes, Timing] = {}
        board.load("dense", exported(analysis.network)[0])

    def __call__(self, kept: Kept) -> Timing:
        """How long a plan takes."""
        key = np.packbits(kept).tobytes()
        if key not in self.timings:
            whole = bool(kept.all())
            names = ["dense"] if whole else ["dense", "plan"]
            self.say(self._so_far())
            if not whole:
                smaller = apply(self.analysis.units, kept)
                data, _ = exported(replace(self.analysis.network, model=smaller))
                self.board.load("plan", data)
            try:
                found = self.board.measure(names, SECONDS)
            except KeyboardInterrupt:
                found = {"stopped": True}
            if found.get("stopped"):
                raise KeyboardInterrupt("stopped; nothing was written")
            dense, plan = found["models"][0], found["models"][-1]
            if not whole:
                self.board.drop("plan")
            device = self.board.device["board"] or self.board.device["cpu"]
            self.timings[key] = Timing(plan["median_ms"], plan["ratio"], dense["median_ms"], device)
        return self.timings[key]

    def _so_far(self) -> str:
        """What there is to see while plans are timed."""
        done = ", ".join(f"{timing.ratio:.1%}" for timing in self.timings.values())
        return f"timing plan {len(self.timings) + 1} on {self.board.place.name}" + (
            f"; of the dense latency so far: {done}" if done else ""
        )
