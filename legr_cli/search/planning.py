"""The settings of a search, from what is given and from what suits the fitness."""

from dataclasses import replace
from typing import Any

from legr_cli.arguments import check_number
from legr_cli.errors import SettingError
from legr_cli.search.fitness import DEFAULT_FITNESS, fallback_fitness, search_settings
from legr_cli.settings import Search
from legr_cli.training.tasks import Task


def planned_search(task: Task, fitness: str | None, **overrides: Any) -> list[Search]:
    """The settings of a search and, if the fitness is not given, those if it does not suit."""
    _check_length(overrides)
    names = [fitness] if fitness else [DEFAULT_FITNESS, fallback_fitness(task)]
    wanted = [overrides, {**overrides, "reject_above": 0.0}]  # only repair compares divergences
    return [search_settings(name, **own) for name, own in zip(names, wanted, strict=False)]


def with_overrides(settings: Search, overrides: dict[str, Any]) -> Search:
    """Override settings, and reduce the population to the number of candidates if necessary."""
    _check_length(overrides)
    candidates = overrides.get("candidates", settings.candidates)
    population = min(settings.population, max(1, candidates))
    limited = {"population": population, "sample": min(settings.sample, population)}
    return replace(settings, **{**limited, **overrides})


def _check_length(overrides: dict[str, Any]) -> None:
    """Raise if both settings that say how long a search is are given, or one is not a number."""
    check_number(overrides.get("candidates", 1), "--candidates", whole=True)
    if overrides.get("minutes") is not None and "candidates" in overrides:
        raise SettingError(
            "--minutes decides how many candidates there are: leave --candidates out"
        )
