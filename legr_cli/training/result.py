"""A training from its first epoch to its best network, on record; whoever looks on is told."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from legr_cli.journal import Line
from legr_cli.training.meter import Watch
from legr_cli.training.resume import Files, recorded
from legr_cli.training.run import Run
from legr_cli.training.setup import TrainingSetup


@dataclass(frozen=True)
class TrainingCallbacks:
    """What is told of a training: that it begins, or goes on; its steps; and its epochs."""

    begun: Callable[[Line], None]  # with what the network reached before
    step: Watch
    epoch: Callable[[Line], None]


@dataclass(frozen=True)
class TrainingResult:
    """What came of a training."""

    model: nn.Module
    header: Line
    reached: Line  # empty for a process that does not lead


@contextlib.contextmanager
def train_to_end(
    setup: TrainingSetup, run: Run, files: Files, callbacks: TrainingCallbacks
) -> Iterator[TrainingResult]:
    """Train to the end, from wherever the record stands; it is closed after the block."""
    group, data, header = setup.group, setup.data, setup.header()
    then = files.begun() if group.is_leader else None
    header["before"] = then and then.get("before")
    if not group.told(then is not None):
        header["before"] = run.measure(data.validation).line()
    with contextlib.ExitStack() as stack:
        record = None
        if group.is_leader:
            record = stack.enter_context(recorded(files, header, run.tensors()))
            run.recall(record.book.lines.values())
        run.agree()
        callbacks.begun(header["before"])
        while not run.over:
            line = run.advance(callbacks.step)
            if record is not None:
                record.keep(line, run.tensors())
            callbacks.epoch(line)
        model = run.finish()
        test = None if data.test is None else run.measure(data.test).line()
        reached = {} if record is None else _reached(run, record.book.lines, test)
        yield TrainingResult(model, header, reached)


def _reached(run: Run, lines: dict[int, Line], test: Line | None) -> Line:
    """What the best network reached, and what it took."""
    epoch = int(run.best_so_far["best_epoch"])
    best = {key: lines[epoch][key] for key in ("accuracy", "loss")}
    best["images"] = len(run.data.validation)
    return {
        "epochs": run.epoch,
        "best_epoch": epoch,
        "validation": best if run.data.held_out else None,  # images it has learned tell nothing
        "test": test,
        "seconds": round(sum(line["seconds"] for line in lines.values()), 3),
    }
