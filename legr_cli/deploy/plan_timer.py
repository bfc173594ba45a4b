"""Time plans of a network to prune, each in alternation with the dense network."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from legr_cli.channels import apply
from legr_cli.channels.units import Kept
from legr_cli.deploy.board import Board
from legr_cli.deploy.export import exported
from legr_cli.latency import Timing
from legr_cli.pruning import Analysis

SECONDS = 1.5  # measuring time for each of the two networks


class PlanTimer:
    """Times plans on a board that holds the dense network; no plan is measured twice."""

    def __init__(
        self, board: Board, analysis: Analysis, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.board, self.analysis, self.say = board, analysis, say
        self.timings: dict[bytes, Timing] = {}
        board.load("dense", exported(analysis.network)[0])

    def __call__(self, kept: Kept) -> Timing:
        """Return the latency of a plan."""
        key = np.packbits(kept).tobytes()
        if key not in self.timings:
            is_dense = bool(kept.all())
            names = ["dense"] if is_dense else ["dense", "plan"]
            self.say(self._progress())
            if not is_dense:
                smaller = apply(self.analysis.units, kept)
                data, _ = exported(replace(self.analysis.network, model=smaller))
                self.board.load("plan", data)
            try:
                measured = self.board.measure(names, SECONDS)
            except KeyboardInterrupt:
                measured = {"stopped": True}
            if measured.get("stopped"):
                raise KeyboardInterrupt("stopped; nothing was written")
            dense, plan = measured["models"][0], measured["models"][-1]
            if not is_dense:
                self.board.drop("plan")
            device = self.board.device["board"] or self.board.device["cpu"]
            self.timings[key] = Timing(plan["median_ms"], plan["ratio"], dense["median_ms"], device)
        return self.timings[key]

    def _progress(self) -> str:
        """Describe the plan to time and the results so far."""
        done = ", ".join(f"{timing.ratio:.1%}" for timing in self.timings.values())
        return f"timing plan {len(self.timings) + 1} on {self.board.place.name}" + (
            f"; so far: {done} of the dense latency" if done else ""
        )
