"""Run a training to its end, recording every epoch."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from legr_cli.journal import Line
from legr_cli.training.meter import ProgressCallback
from legr_cli.training.resume import RunFiles, open_record
from legr_cli.training.run import Run
from legr_cli.training.setup import TrainingSetup


@dataclass(frozen=True)
class TrainingCallbacks:
    """Called when training starts or resumes, every now and then between steps, and per epoch."""

    started: Callable[[Line | None], None]  # score before training; None: only the leader knows it
    step: ProgressCallback
    epoch: Callable[[Line], None]  # with the epoch's journal line


@dataclass(frozen=True)
class TrainingResult:
    """A trained network and its scores."""

    model: nn.Module
    header: Line
    results: Line  # empty in all processes but the leader


@contextlib.contextmanager
def train_to_end(
    setup: TrainingSetup, run: Run, files: RunFiles, callbacks: TrainingCallbacks
) -> Iterator[TrainingResult]:
    """Train for the remaining epochs; the record stays open, and locked, until the block ends."""
    group, data, header = setup.group, setup.data, dict(setup.header)
    stored = files.stored_header() if group.is_leader else None
    header["before"] = stored and stored.get("before")
    if not group.broadcast_int(stored is not None):
        header["before"] = run.measure(data.validation).line()
    with contextlib.ExitStack() as stack:
        record = None
        if group.is_leader:
            record = stack.enter_context(open_record(files, header, run.tensors()))
            run.count_start(header["before"])
            run.replay(record.book.lines.values())
        run.synchronize()
        callbacks.started(header["before"])
        while not run.is_finished:
            line = run.train_epoch(callbacks.step)
            if record is not None:
                record.add(line, run.tensors())
            callbacks.epoch(line)
        model = run.load_best()
        test = None if data.test is None else run.measure(data.test).line()
        lines = {} if record is None else {0: header["before"], **record.book.lines}
        results = {} if record is None else _results(run, lines, test)
        yield TrainingResult(model, header, results)


def _results(run: Run, lines: dict[int, Line], test: Line | None) -> Line:
    """Scores of the best network, and the duration of the training."""
    epoch = int(run.best_so_far["best_epoch"])
    keys = ("accuracy", "score", "figures", "loss")
    best = {key: lines[epoch][key] for key in keys if key in lines[epoch]}
    best["images"] = len(run.data.validation)
    return {
        "epochs": run.epoch,
        "best_epoch": epoch,
        # If no images are held out, these were trained on, so their score would be misleading.
        "validation": best if run.data.held_out else None,
        "test": test,
        "seconds": round(sum(line.get("seconds", 0.0) for line in lines.values()), 3),
    }
