"""NAME.history.jsonl: a header that describes the search, then one line per evaluated candidate.

To resume, the search is replayed from its seed with the recorded outcomes, and only candidates
without a line are evaluated. So the result does not depend on when it was interrupted.
"""

import math
from pathlib import Path

from legr_cli.errors import SearchError
from legr_cli.journal import JournalFormat, Line, is_accuracy, is_loss, is_score, is_scored

PRICED = 3  # candidates after which the price of a search is known


def history_of(ranking: Path) -> Path:
    """The journal next to a ranking: `NAME.history.jsonl`."""
    return ranking.with_suffix(".history.jsonl")


def _is_header(line: Line) -> bool:
    """Whether a header is valid."""
    values = line.get("metric_values", {})
    lists = [*values.values()] if isinstance(values, dict) else [None]
    lists.append(line.get("sensitivities", []))
    return all(map(_are_numbers, lists)) and ("dense" not in line or is_score(line["dense"]))


def _are_numbers(values: object) -> bool:
    """Whether this is a list of finite numbers."""
    return isinstance(values, list) and all(map(is_accuracy, values))


def _is_sound(line: Line, settings: Line) -> bool:
    """Whether the line of a candidate is valid."""
    number = line.get("candidate")
    return (
        type(number) is int
        and 0
        <= number
        < (math.inf if settings.get("minutes") else settings.get("candidates", math.inf))
        and is_scored(line)
        and is_loss(line.get("loss"))
        and is_loss(line.get("divergence"))
        and type(line.get("cached")) is bool
        and isinstance(line.get("flops"), int | None)
        and isinstance(line.get("seconds", 0), int | float)
        and all(map(is_loss, _list(line, "divergences")))
        and (number != PRICED - 1 or not settings.get("minutes") or _is_planned(line))
    )


def _list(line: Line, key: str) -> list[object]:
    """A list in a line; one that no check accepts if it is something else."""
    value = line.get(key, [])
    return value if isinstance(value, list) else [""]


def _is_planned(line: Line) -> bool:
    """Whether a line says how many candidates there will be."""
    return type(line.get("planned")) is int and line["planned"] >= PRICED


HISTORY = JournalFormat(
    format="legr-history",
    work="search",
    command="legr learn",
    key="candidate",
    is_header=_is_header,
    is_sound=_is_sound,
    error=SearchError,
)
