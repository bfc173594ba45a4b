"""NAME.history.jsonl: what was searched, then a line for each candidate as it finished.

A search that was stopped is repeated from its seed with the recorded outcomes; only candidates
without a line are tried again. So what follows does not depend on when it was stopped.
"""

import math
from pathlib import Path

from legr_cli.errors import SearchError
from legr_cli.journal import JournalFormat, Line, is_accuracy, is_loss, is_score


def history_of(ranking: Path) -> Path:
    """The journal beside a ranking: `NAME.history.jsonl`."""
    return ranking.with_suffix(".history.jsonl")


def _is_header(line: Line) -> bool:
    """Whether a first line has what a search reads from it."""
    return "dense" not in line or is_score(line["dense"])


def _is_sound(line: Line, settings: Line) -> bool:
    """Whether a candidate's line has all that a search reads from it."""
    number = line.get("candidate")
    return (
        type(number) is int
        and 0 <= number < settings.get("candidates", math.inf)
        and is_accuracy(line.get("accuracy"))
        and is_loss(line.get("loss"))
        and type(line.get("cached")) is bool
        and isinstance(line.get("flops"), int | None)
        and isinstance(line.get("seconds", 0), int | float)
    )


HISTORY = JournalFormat(
    format="legr-history",
    work="search",
    command="legr learn",
    key="candidate",
    is_header=_is_header,
    is_sound=_is_sound,
    error=SearchError,
)
