"""The journal line of a candidate: from what workers measured, and to what it is ranked by."""

import math
from collections.abc import Iterable, Sequence

from legr_cli.journal import Line
from legr_cli.search.evaluator import Outcome
from legr_cli.search.evolution import Fitness
from legr_cli.search.fitness import adaptation
from legr_cli.search.objectives import OBJECTIVES, divergences_in, excess
from legr_cli.settings import Search
from legr_cli.training.scores import Score, finite_or_none, score_in

DIVERGENCE = ("divergence", "divergences", "measured")  # what a line has of divergences


def mean_seconds_in(lines: Iterable[Line]) -> float:
    """Mean time of the candidates that were evaluated; 0 if none was."""
    found = [line["seconds"] for line in lines if "seconds" in line]
    return sum(found) / max(1, len(found))


def fitness_of(line: Line, settings: Search) -> Fitness:
    """What the search maximizes, from a candidate's journal line."""
    minus_loss = -math.inf if line["loss"] is None else -line["loss"]
    if not adaptation(settings.fitness).ranks_by_divergence:
        return Fitness(score_in(line), minus_loss)
    divergences = divergences_in(line)
    if divergences is None or math.inf in divergences:
        return Fitness(-math.inf, minus_loss)
    return Fitness(OBJECTIVES[settings.objective](divergences, line), minus_loss)


def mean_outcome(outcomes: list[Outcome], best: Sequence[float] | None) -> Line:
    """Mean scores over all FLOPs targets, the score at each, and the total time.

    A candidate that was rejected early counts at the other targets as worse than the best one by
    the same factor.
    """
    scores, count = [outcome.score for outcome in outcomes], len(outcomes)
    mean = Score(
        sum(score.value for score in scores) / count,
        sum(score.loss for score in scores) / count,
        scores[0].images,
        {name: sum(score.figures[name] for score in scores) / count for name in scores[0].figures},
    )
    line = {key: value for key, value in mean.line().items() if key != "images"}
    divergences = [o.divergence for o in outcomes if o.divergence is not None]
    if divergences and best is not None and len(divergences) < len(best):
        line["measured"], factor = len(divergences), excess(divergences, best)
        divergences += [divergence * factor for divergence in best[len(divergences) :]]
    if divergences:
        line["divergence"] = finite_or_none(sum(divergences) / len(divergences))
    if len(divergences) > 1:
        line["divergences"] = list(map(finite_or_none, divergences))
    if count > 1:
        line["each"] = [score.value for score in scores]
    for part in ("seconds", "adapt_seconds", "measure_seconds"):
        line[part] = round(sum(getattr(outcome, part) for outcome in outcomes), 4)
    return line
