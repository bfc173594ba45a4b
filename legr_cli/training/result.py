"""Run a training to its end, with a record of every epoch."""

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
    """Called when training starts or resumes, now and then between steps, and after each epoch."""

    started: Callable[[Line], None]  # with the score of the network before
    step: Watch
    epoch: Callable[[Line], None]


@dataclass(frozen=True)
class TrainingResult:
    """A trained network and what it reached."""

    model: nn.Module
    header: Line
    reached: Line  # empty in processes that do not lead


@contextlib.contextmanager
def train_to_end(
    setup: TrainingSetup, run: Run, files: Files, callbacks: TrainingCallbacks
) -> Iterator[TrainingResult]:
    """Train to the end, from wherever the record stands; the record is closed after the block."""
    group, data, header = setup.group, setup.data, dict(setup.header)
    earlier = files.begun() if group.is_leader else None
    header["before"] = earlier and earlier.get("before")
    if not group.told(earlier is not None):
        header["before"] = run.measure(data.validation).line()
    with contextlib.ExitStack() as stack:
        record = None
        if group.is_leader:
            record = stack.enter_context(recorded(files, header, run.tensors()))
            run.recall(record.book.lines.values())
        run.agree()
        callbacks.started(header["before"])
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
    """Scores of the best network, and the time it took."""
    epoch = int(run.best_so_far["best_epoch"])
    best = {key: lines[epoch][key] for key in ("accuracy", "loss")}
    best["images"] = len(run.data.validation)
    return {
        "epochs": run.epoch,
        "best_epoch": epoch,
        "validation": best if run.data.held_out else None,  # trained on: it would say nothing
        "test": test,
        "seconds": round(sum(line["seconds"] for line in lines.values()), 3),
    }
