"""Output of `legr finetune`: progress of the training, results and recipes."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from legr_cli.commands import output
from legr_cli.commands.invocation import command_line, resume_command
from legr_cli.commands.progress import Pace, ProgressDisplay
from legr_cli.errors import SettingError
from legr_cli.version import __version__

if TYPE_CHECKING:
    from legr_cli.journal import Line
    from legr_cli.models.network import Network
    from legr_cli.training.meter import Progress
    from legr_cli.training.resume import Files
    from legr_cli.training.run import Run
    from legr_cli.training.setup import TrainingSetup


def show_recipes() -> None:
    """Print a table of all recipes to stdout."""
    from legr_cli.training.recipes import RECIPES, settings_of

    title = "SGD, Nesterov momentum 0.9, weight decay 5e-4, batch size 128; options override these"
    columns = ("recipe", "epochs", "learning rate", "patience", "for")
    table = output.table(title, *columns, left=("recipe", "learning rate", "for"))
    for name, recipe in RECIPES.items():
        settings = settings_of(name)
        drops = "/".join(f"{drop:g}" for drop in settings.drops)
        rate = f"{settings.lr:g}, ÷{settings.drop_by:g} at {drops}"
        if settings.schedule == "one-cycle":
            rate = f"{settings.lr:g}, one-cycle"
        patience = str(settings.patience or "")
        table.add_row(name, str(settings.epochs), rate, patience, recipe.what_for)
    output.print_table(output.console(stderr=False), table)


def train_and_show(setup: "TrainingSetup", run: "Run", files: "Files", as_json: bool) -> None:
    """Train with a progress display, write the best network and show the results."""
    from legr_cli.training.result import TrainingCallbacks, train_to_end
    from legr_cli.training.resume import key_of

    group = setup.group
    done = files.done(key_of(setup.header())) if group.is_leader else None
    if group.told(done is not None):
        if done is not None:
            output.print_notes("training is already complete")
            _show(setup, files, done, as_json)
        return
    total = setup.settings.epochs * run.steps
    with ProgressDisplay(total, quiet=not group.is_leader) as display:
        view = _View(display, run)

        def on_start(before: "Line") -> None:
            for text in _opening_lines(setup, run, before, files.resume):
                display.log(text)

        try:
            with train_to_end(
                setup, run, files, TrainingCallbacks(on_start, view.step, view.epoch)
            ) as outcome:
                if group.is_leader:
                    network = setup.result(outcome.model, outcome.header, outcome.reached)
                    files.finish(_with_command(network))
        except KeyboardInterrupt:
            epochs = f"{run.epoch} of {setup.settings.epochs} epochs"
            raise KeyboardInterrupt(
                f"interrupted after {epochs}; resume with: {resume_command()}"
            ) from None
    if group.is_leader:
        _show(setup, files, network.notes["training"], as_json)


def recalibrate_and_show(setup: "TrainingSetup", run: "Run", files: "Files", as_json: bool) -> None:
    """Re-estimate BatchNorm statistics, write the network and show the results."""
    from legr_cli.training.loop import has_statistics
    from legr_cli.training.measure import refresh
    from legr_cli.training.resume import recorded

    group, data, seed = setup.group, setup.data, setup.settings.seed
    header = setup.header({"recipe": "bn-recalibrate", "seed": seed})
    if not has_statistics(run.model):
        raise SettingError("--bn-recalibrate: this network has no BatchNorm layers")
    started = time.perf_counter()
    header["before"] = run.measure(data.validation).line()
    refresh(run.model, data, group.device, seed)
    reached = {
        "epochs": 0,
        "best_epoch": 0,
        "validation": run.measure(data.validation).line(),
        "test": None if data.test is None else run.measure(data.test).line(),
        "seconds": round(time.perf_counter() - started, 1),
    }
    if group.is_leader:
        network = setup.result(run.model, header, reached)
        with recorded(files, header, {}):
            files.finish(_with_command(network))
        _show(setup, files, network.notes["training"], as_json)


class _View:
    """Progress of a training, step by step and epoch by epoch."""

    def __init__(self, display: ProgressDisplay, run: "Run") -> None:
        self.display, self.run, self.pace = display, run, Pace()
        self.total = run.settings.epochs

    def step(self, progress: "Progress") -> None:
        """Update the display within an epoch."""
        done = (progress.epoch - 1) * progress.steps + progress.step
        facts = [
            f"loss {progress.loss:.4f}",
            f"train {progress.accuracy:.2%}",
            f"{progress.images_per_second:.0f} images/s",
            *self.pace.remaining(done, self.total * progress.steps),
            *self._best(),
        ]
        self.display.update(done, f"epoch {progress.epoch}/{self.total}", facts)

    def epoch(self, line: "Line") -> None:
        """Report a finished epoch."""
        done = line["epoch"] * self.run.steps
        data = self.run.data
        measured = "validation" if data.held_out else f"{len(data.validation)} of them"
        facts = [
            f"loss {line['train_loss']:.4f}",
            f"{measured} {line['accuracy']:.2%}",
            f"{line['images_per_second']:.0f} images/s",
            *self.pace.remaining(done, self.total * self.run.steps),
            *self._best(),
        ]
        title = f"epoch {line['epoch']}/{self.total}"
        self.display.update(done, title, facts, always=True)

    def _best(self) -> list[str]:
        """`best 91.20% (#3)`, once there is one and if images are held out."""
        best = self.run.best_so_far
        if not best["best_epoch"] or not self.run.data.held_out:
            return []
        return [f"best {best['best_accuracy']:.2%} (#{best['best_epoch']:.0f})"]


def _opening_lines(
    setup: "TrainingSetup", run: "Run", before: "Line | None", resume: bool
) -> list[str]:
    """Lines to print before training: what is trained and how, and likely mistakes."""
    from legr_cli.data.dataset import doubts

    settings, data, group = setup.settings, setup.data, setup.group
    images = f"{len(data.train)} training and {len(data.validation)} validation images"
    if not data.held_out:
        images = (
            f"all {len(data.train)} training images, measured on {len(data.validation)} of them"
        )
    lines = [f"{setup.network.arch} on {images}, preprocessed as {data.feed}", *doubts(data)]
    if before is not None:
        lines.append(f"validation accuracy before training: {before['accuracy']:.2%}")
    if group.size > 1:
        lines.append(
            f"{group.size} processes with {settings.batch_size // group.size} images per batch each"
        )
    if resume:
        resumed = f"resuming after {run.epoch} of {settings.epochs} epochs"
        lines.append(resumed if run.epoch else "nothing to resume: starting from the beginning")
    return lines


def _with_command(network: "Network") -> "Network":
    """The network with this command line among its notes."""
    from legr_cli.models.card import with_command

    return replace(network, notes=with_command(network.notes, command_line()))


def _show(setup: "TrainingSetup", files: "Files", reached: "Line", as_json: bool) -> None:
    """Print accuracies to stderr and the file name to stdout, or everything as JSON."""
    before = reached["before"]
    if as_json:
        about = ("before", "epochs", "best_epoch", "validation", "test", "seconds", "settings")
        facts = {key: reached[key] for key in about if key in reached}
        output.print_json({"legr": __version__, "file": str(files.out), **facts})
        return
    table = output.table("accuracy", "network", "validation", "test", left=("network",))
    table.add_row("before", f"{before['accuracy']:.2%}", "")
    after = f"after epoch {reached['best_epoch']} of {reached['epochs']}"
    scores = (reached[split] for split in ("validation", "test"))
    shown = ("" if score is None else f"{score['accuracy']:.2%}" for score in scores)
    table.add_row(after if reached["epochs"] else "after recalibration", *shown)
    screen = output.console()
    output.print_table(screen, table)
    held_out = reached["validation"]
    if held_out is not None and held_out["accuracy"] < before["accuracy"]:
        note = "validation accuracy never reached that of the network before training"
        output.print_notes(f"{note}: try a lower --lr or more epochs")
    if reached["test"] is None:
        output.print_notes(f"{setup.data.spec} has no test images")
    output.print_result(str(files.out))
