"""A training from its first epoch to its file, as people watch it."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from legr_cli import __version__
from legr_cli.commands import output
from legr_cli.commands.invocation import command_line, resume_command
from legr_cli.commands.progress import Pace, ProgressDisplay
from legr_cli.errors import SettingError

if TYPE_CHECKING:
    from legr_cli.journal import Line
    from legr_cli.models.network import Network
    from legr_cli.training.meter import Progress
    from legr_cli.training.resume import Files
    from legr_cli.training.run import Run
    from legr_cli.training.setup import TrainingSetup


def trained(setup: "TrainingSetup", run: "Run", files: "Files", as_json: bool) -> None:
    """Train, with something to look at, and write the best network."""
    from legr_cli.training.result import TrainingCallbacks, train_to_end
    from legr_cli.training.resume import key_of

    group = setup.group
    done = files.done(key_of(setup.header())) if group.is_leader else None
    if group.told(done is not None):
        if done is not None:
            output.console().print("nothing is left to train", style="dim")
            _show(setup, files, done, as_json)
        return
    total = setup.settings.epochs * run.steps
    with ProgressDisplay(total, quiet=not group.is_leader) as display:
        view = _View(display, run)

        def begun(before: "Line") -> None:
            for text in _greeting(setup, run, before, files.resume):
                display.say(text)

        try:
            with train_to_end(
                setup, run, files, TrainingCallbacks(begun, view.step, view.epoch)
            ) as outcome:
                if group.is_leader:
                    network = setup.result(outcome.model, outcome.header, outcome.reached)
                    files.finish(_remembered(network))
        except KeyboardInterrupt:
            epochs = f"{run.epoch} of {setup.settings.epochs} epochs"
            raise KeyboardInterrupt(
                f"stopped after {epochs}; resume with: {resume_command()}"
            ) from None
    if group.is_leader:
        _show(setup, files, network.notes["training"], as_json)


def recalibrated(setup: "TrainingSetup", run: "Run", files: "Files", as_json: bool) -> None:
    """Re-estimate BatchNorm statistics, and write the network."""
    from legr_cli.training.loop import has_statistics
    from legr_cli.training.measure import refresh
    from legr_cli.training.resume import recorded

    group, data, seed = setup.group, setup.data, setup.settings.seed
    header = setup.header({"recipe": "bn-recalibrate", "seed": seed})
    if not has_statistics(run.model):
        raise SettingError("--bn-recalibrate: this network has no BatchNorm")
    begun = time.perf_counter()
    header["before"] = run.measure(data.validation).line()
    refresh(run.model, data, group.device, seed)
    reached = {
        "epochs": 0,
        "best_epoch": 0,
        "validation": run.measure(data.validation).line(),
        "test": None if data.test is None else run.measure(data.test).line(),
        "seconds": round(time.perf_counter() - begun, 1),
    }
    if group.is_leader:
        network = setup.result(run.model, header, reached)
        with recorded(files, header, {}):
            files.finish(_remembered(network))
        _show(setup, files, network.notes["training"], as_json)


class _View:
    """What is seen of a training while it goes on."""

    def __init__(self, display: ProgressDisplay, run: "Run") -> None:
        self.display, self.run, self.pace = display, run, Pace()
        self.total = run.settings.epochs

    def step(self, now: "Progress") -> None:
        """The middle of an epoch."""
        done = (now.epoch - 1) * now.steps + now.step
        facts = [
            f"loss {now.loss:.4f}",
            f"{now.accuracy:.2%} right",
            f"{now.images_per_second:.0f} images/s",
            *self.pace.left(done, self.total * now.steps),
            *self._best(),
        ]
        self.display.show(done, f"epoch {now.epoch}/{self.total}", facts)

    def epoch(self, line: "Line") -> None:
        """The end of one."""
        done = line["epoch"] * self.run.steps
        data = self.run.data
        measured = "validation" if data.held_out else f"{len(data.validation)} of them"
        facts = [
            f"loss {line['train_loss']:.4f}",
            f"{measured} {line['accuracy']:.2%}",
            f"{line['images_per_second']:.0f} images/s",
            *self.pace.left(done, self.total * self.run.steps),
            *self._best(),
        ]
        title = f"epoch {line['epoch']}/{self.total}"
        self.display.show(done, title, facts, tell=True)

    def _best(self) -> list[str]:
        """`best 91.20% (#3)`, once there is one, and images to tell it by."""
        best = self.run.best_so_far
        if not best["best_epoch"] or not self.run.data.held_out:
            return []
        return [f"best {best['best_accuracy']:.2%} (#{best['best_epoch']:.0f})"]


def _greeting(setup: "TrainingSetup", run: "Run", before: "Line | None", resume: bool) -> list[str]:
    """What is trained and how, and what looks wrong with it."""
    from legr_cli.data.dataset import doubts

    settings, data, group = setup.settings, setup.data, setup.group
    images = f"{len(data.train)} training and {len(data.validation)} validation images"
    if not data.held_out:
        images = f"all {len(data.train)} training images, {len(data.validation)} of them measured"
    lines = [f"{setup.network.arch} on {images}, shown as {data.feed}", *doubts(data)]
    if before is not None:
        lines.append(f"before training: {before['accuracy']:.2%} of the validation images")
    if group.size > 1:
        lines.append(f"{group.size} processes with {settings.batch_size // group.size} images each")
    if resume:
        going = f"{run.epoch} of {settings.epochs} epochs are done: going on"
        lines.append(going if run.epoch else "nothing was found to resume: beginning")
    return lines


def _remembered(network: "Network") -> "Network":
    """A network that knows the command which made it."""
    from legr_cli.models.network import with_command

    return replace(network, notes=with_command(network.notes, command_line()))


def _show(setup: "TrainingSetup", files: "Files", reached: "Line", as_json: bool) -> None:
    """What was gained, and the network's name on stdout; or everything as JSON."""
    before = reached["before"]
    if as_json:
        about = ("before", "epochs", "best_epoch", "validation", "test", "seconds", "settings")
        facts = {key: reached[key] for key in about if key in reached}
        output.emit({"legr": __version__, "file": str(files.out), **facts})
        return
    table = output.table("accuracy", "network", "validation", "test", left=("network",))
    table.add_row("before", f"{before['accuracy']:.2%}", "")
    after = f"after epoch {reached['best_epoch']} of {reached['epochs']}"
    scores = (reached[split] for split in ("validation", "test"))
    shown = ("" if score is None else f"{score['accuracy']:.2%}" for score in scores)
    table.add_row(after if reached["epochs"] else "with new statistics", *shown)
    screen = output.console()
    output.put(screen, table)
    held_out = reached["validation"]
    if held_out is not None and held_out["accuracy"] < before["accuracy"]:
        note = "no epoch was as good on the validation images as the network before training"
        screen.print(f"{note}: a lower --lr, or more epochs?", style="dim")
    if reached["test"] is None:
        screen.print(f"{setup.data.spec} has no test images", style="dim")
    output.line(str(files.out))
