"""The command that is running, as it was typed: for files that tell how they were made."""

import shlex
from contextvars import ContextVar

WORDS: ContextVar[tuple[str, ...]] = ContextVar("WORDS", default=())
_PASSING = ("--resume", "--force", "--json")  # what changes how a command runs, not what it makes


def command_line() -> str:
    """`legr prune …`, without what makes no difference to its result."""
    return shlex.join(["legr", *(word for word in WORDS.get() if word not in _PASSING)])


def resume_command() -> str:
    """The command that goes on with what this one began."""
    return f"{command_line()} --resume"
