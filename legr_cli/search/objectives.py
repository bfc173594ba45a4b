"""The table of objectives: what candidates are ranked by, from their divergences at all shares."""

import math
from collections.abc import Callable, Sequence

from legr_cli.errors import SettingError
from legr_cli.journal import Line
from legr_cli.training.scores import score_in

FLOOR = 0.02  # divergences far below this, a percent of other answers, are equally good


def _mean(divergences: Sequence[float], _line: Line) -> float:
    """The mean divergence, which the lowest share dominates."""
    return -sum(divergences) / len(divergences)


def _log(divergences: Sequence[float], _line: Line) -> float:
    """The mean logarithm: a tenth less divergence counts alike at every share."""
    return -sum(math.log(d + FLOOR) for d in divergences) / len(divergences)


def _score(_divergences: Sequence[float], line: Line) -> float:
    """The mean score, such as the area under the curve of accuracy by FLOPs."""
    return score_in(line)


# Divergence from the dense network at each share, and the candidate's line → higher is better.
OBJECTIVES: dict[str, Callable[[Sequence[float], Line], float]] = {
    "mean": _mean,
    "log": _log,
    "score": _score,
}


def check_objective(name: str, by_divergence: bool) -> None:
    """Raise unless there is such an objective and it suits how candidates are scored."""
    if name not in OBJECTIVES:
        raise SettingError(f"--objective {name}: expected {', '.join(OBJECTIVES)}")
    if name == "log" and not by_divergence:
        raise SettingError(
            "--objective log compares divergences, which only --fitness repair measures: use mean"
        )


def divergences_in(line: Line) -> list[float] | None:
    """The divergence of a candidate at each share, from its journal line; None if not compared."""
    each = line.get("divergences", [line["divergence"]] if "divergence" in line else None)
    return None if each is None else [math.inf if d is None else d for d in each]


def excess(divergences: Sequence[float], best: Sequence[float]) -> float:
    """By which factor divergences exceed those of the best candidate at the same shares."""
    pairs = zip(divergences, best, strict=False)
    logs = [math.log(max((d + FLOOR) / (b + FLOOR), 1e-30)) for d, b in pairs]
    return math.exp(min(sum(logs) / len(logs), 100.0))
