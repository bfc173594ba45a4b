"""The command line of the running command, recorded in the files it writes."""

import shlex
from contextvars import ContextVar

ARGUMENTS: ContextVar[tuple[str, ...]] = ContextVar("ARGUMENTS", default=())
_TRANSIENT = ("--resume", "--force", "--json")  # change how a command runs, not what it produces


def command_line() -> str:
    """`legr prune …`, without the options that make no difference to the result."""
    return shlex.join(["legr", *(word for word in ARGUMENTS.get() if word not in _TRANSIENT)])


def resume_command() -> str:
    """The command line that resumes this run."""
    return f"{command_line()} --resume"
