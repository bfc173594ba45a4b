"""The errors that legr raises deliberately.

LegrError
├── SettingError      an option has an invalid value
├── ModelError        the architecture is unknown, or cannot be built or traced
├── CheckpointError   the weights are missing, unsafe, damaged or do not fit the network
├── RankingError      the ranking is damaged or belongs to a different network
├── DataError         the dataset is missing, damaged or does not fit the network
├── SearchError       a search failed or cannot be resumed
├── TrainingError     training failed or cannot be resumed
├── BudgetError       no plan meets the target
├── BenchError        a network cannot be measured, or not on that machine
├── ReportError       there is nothing to report, or a results file is damaged
└── OutputError       a result cannot be written
"""


class LegrError(Exception):
    """An error with a one-line message: what is wrong, where, and what to do next."""


class SettingError(LegrError):
    """An option has an invalid value."""


class ModelError(LegrError):
    """The architecture is unknown, or cannot be built, run or traced."""


class CheckpointError(LegrError):
    """The weights are missing, unsafe, damaged or do not fit the network."""


class RankingError(LegrError):
    """The ranking is damaged or belongs to a different network."""


class DataError(LegrError):
    """The dataset is missing, damaged or does not fit the network."""


class SearchError(LegrError):
    """A search failed or cannot be resumed."""


class TrainingError(LegrError):
    """Training failed or cannot be resumed."""


class BudgetError(LegrError):
    """No plan meets the target."""


class BenchError(LegrError):
    """A network cannot be measured, or not on that machine."""


class ReportError(LegrError):
    """There is nothing to report, or a results file is damaged."""


class OutputError(LegrError):
    """A result cannot be written."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, to quote in one of ours."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
