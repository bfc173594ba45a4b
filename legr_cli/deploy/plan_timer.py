"""Measure the latency of plans, each in turns with the dense network."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from legr_cli.channels import apply
from legr_cli.channels.units import Kept
from legr_cli.deploy.board import Board
from legr_cli.deploy.export import export_bytes
from legr_cli.latency import Timing
from legr_cli.pruning import Analysis

SECONDS = 1.5  # measuring time for each of the two networks


class PlanTimer:
    """Times plans of one network on a board; results are cached by plan."""

    def __init__(
        self, board: Board, analysis: Analysis, status: Callable[[str], None] = lambda _: None
    ) -> None:
        self.board, self.analysis, self.status = board, analysis, status
        self.timings: dict[bytes, Timing] = {}
        board.load("dense", export_bytes(analysis.network)[0])

    def __call__(self, kept: Kept) -> Timing:
        """Return the latency of a plan."""
        key = np.packbits(kept).tobytes()
        if key not in self.timings:
            is_dense = bool(kept.all())
            names = ["dense"] if is_dense else ["dense", "plan"]
            self.status(self._status())
            if not is_dense:
                smaller = apply(self.analysis.units, kept)
                data, _ = export_bytes(replace(self.analysis.network, model=smaller))
                self.board.load("plan", data)
            try:
                measured = self.board.measure(names, SECONDS)
            except KeyboardInterrupt:
                measured = {"stopped": True}
            if measured.get("stopped"):
                raise KeyboardInterrupt("interrupted: no file was written")
            dense, plan = measured["models"][0], measured["models"][-1]
            if not is_dense:
                self.board.drop("plan")
            device = self.board.device["board"] or self.board.device["cpu"]
            self.timings[key] = Timing(plan["median_ms"], plan["ratio"], dense["median_ms"], device)
        return self.timings[key]

    def _status(self) -> str:
        """Describe what is being timed, and the results so far."""
        done = ", ".join(f"{timing.ratio:.1%}" for timing in self.timings.values())
        return f"timing plan {len(self.timings) + 1} on {self.board.place.name}" + (
            f"; so far: {done} of the dense latency" if done else ""
        )
