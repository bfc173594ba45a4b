"""Every error that legr raises on purpose.

LegrError
├── SettingError      an option's value makes no sense
├── ModelError        no such architecture, or it cannot be built or traced
├── CheckpointError   a weights file is missing, unsafe, damaged or of another network
├── RankingError      a ranking.json is damaged or of another network
├── DataError         a data set is missing, damaged or of other classes
├── SearchError       a search cannot go on, or not from where it stopped
├── TrainingError     a training cannot go on, or not from where it stopped
├── BudgetError       no plan meets the target
├── BenchError        a network cannot be measured, or not there
├── ReportError       there is nothing to report, or a file of it is damaged
└── OutputError       a result cannot be written
"""


class LegrError(Exception):
    """An error with one line for the user: what, where, and what to do next."""


class SettingError(LegrError):
    """An option's value makes no sense."""


class ModelError(LegrError):
    """The architecture is unknown, or cannot be built, run or traced."""


class CheckpointError(LegrError):
    """The weights cannot be read, are not trusted, or do not fit the network."""


class RankingError(LegrError):
    """The ranking cannot be read or belongs to another network."""


class DataError(LegrError):
    """A data set is missing, damaged or does not fit the network."""


class SearchError(LegrError):
    """A search cannot go on, or not from where it stopped."""


class TrainingError(LegrError):
    """A training cannot go on, or not from where it stopped."""


class BudgetError(LegrError):
    """No plan meets the target."""


class BenchError(LegrError):
    """A network cannot be measured, or not on that machine."""


class ReportError(LegrError):
    """There is nothing to report, or a file of it is damaged."""


class OutputError(LegrError):
    """A result cannot be written."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a message of ours."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
