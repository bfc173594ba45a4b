"""NAME.history.jsonl: a header that describes the search, then one line per evaluated candidate.

To resume, the search is replayed from its seed with the recorded outcomes, and only candidates
without a line are evaluated. So the result does not depend on when it was interrupted.
"""

import math
from pathlib import Path

from legr_cli.errors import SearchError
from legr_cli.journal import JournalFormat, Line, is_loss, is_score, is_scored


def history_of(ranking: Path) -> Path:
    """The journal next to a ranking: `NAME.history.jsonl`."""
    return ranking.with_suffix(".history.jsonl")


def _is_header(line: Line) -> bool:
    """Whether a header is valid."""
    return "dense" not in line or is_score(line["dense"])


def _is_sound(line: Line, settings: Line) -> bool:
    """Whether the line of a candidate is valid."""
    number = line.get("candidate")
    return (
        type(number) is int
        and 0 <= number < settings.get("candidates", math.inf)
        and is_scored(line)
        and is_loss(line.get("loss"))
        and is_loss(line.get("divergence"))
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
