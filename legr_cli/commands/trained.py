"""A training from its first epoch to its file, as people watch it."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from legr_cli import __version__
from legr_cli.commands import show
from legr_cli.commands.live import Live, Pace
from legr_cli.commands.typed import go_on, typed
from legr_cli.errors import SettingError

if TYPE_CHECKING:
    from legr_cli.journal import Line
    from legr_cli.networks import Network
    from legr_cli.training.epochs import Files
    from legr_cli.training.finetune import Run
    from legr_cli.training.session import Session
    from legr_cli.training.tally import Progress


def trained(session: "Session", run: "Run", files: "Files", as_json: bool) -> None:
    """Train, with something to look at, and write the best network."""
    from legr_cli.training.course import Sight, followed
    from legr_cli.training.epochs import key_of

    team = session.team
    done = files.done(key_of(session.header())) if team.leads else None
    if team.told(done is not None):
        if done is not None:
            show.console().print("nothing is left to train", style="dim")
            _show(session, files, done, as_json)
        return
    total = session.settings.epochs * run.steps
    with Live(total, quiet=not team.leads) as live:
        view = _View(live, run)

        def begun(before: "Line") -> None:
            for text in _greeting(session, run, before, files.resume):
                live.say(text)

        try:
            with followed(session, run, files, Sight(begun, view.step, view.epoch)) as course:
                if team.leads:
                    network = session.result(course.model, course.header, course.reached)
                    files.finish(_remembered(network))
        except KeyboardInterrupt:
            epochs = f"{run.epoch} of {session.settings.epochs} epochs"
            raise KeyboardInterrupt(f"stopped after {epochs}; go on with: {go_on()}") from None
    if team.leads:
        _show(session, files, network.notes["training"], as_json)


def recalibrated(session: "Session", run: "Run", files: "Files", as_json: bool) -> None:
    """Re-estimate BatchNorm statistics, and write the network."""
    from legr_cli.training.epochs import recorded
    from legr_cli.training.loop import has_statistics
    from legr_cli.training.measure import refresh

    team, data, seed = session.team, session.data, session.settings.seed
    header = session.header({"recipe": "bn-recalibrate", "seed": seed})
    if not has_statistics(run.model):
        raise SettingError("--bn-recalibrate: this network has no BatchNorm")
    begun = time.perf_counter()
    header["before"] = run.measure(data.validation).line()
    refresh(run.model, data, team.device, seed)
    reached = {
        "epochs": 0,
        "best_epoch": 0,
        "validation": run.measure(data.validation).line(),
        "test": None if data.test is None else run.measure(data.test).line(),
        "seconds": round(time.perf_counter() - begun, 1),
    }
    if team.leads:
        network = session.result(run.model, header, reached)
        with recorded(files, header, {}):
            files.finish(_remembered(network))
        _show(session, files, network.notes["training"], as_json)


class _View:
    """What is seen of a training while it goes on."""

    def __init__(self, live: Live, run: "Run") -> None:
        self.live, self.run, self.pace = live, run, Pace()
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
        self.live.show(done, f"epoch {now.epoch}/{self.total}", facts)

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
        self.live.show(done, title, facts, tell=True)

    def _best(self) -> list[str]:
        """`best 91.20% (#3)`, once there is one, and images to tell it by."""
        best = self.run.standing
        if not best["best_epoch"] or not self.run.data.held_out:
            return []
        return [f"best {best['best_accuracy']:.2%} (#{best['best_epoch']:.0f})"]


def _greeting(session: "Session", run: "Run", before: "Line | None", resume: bool) -> list[str]:
    """What is trained and how, and what looks wrong with it."""
    from legr_cli.training.data import doubts

    settings, data, team = session.settings, session.data, session.team
    images = f"{len(data.train)} training and {len(data.validation)} validation images"
    if not data.held_out:
        images = f"all {len(data.train)} training images, {len(data.validation)} of them measured"
    lines = [f"{session.network.arch} on {images}, shown as {data.feed}", *doubts(data)]
    if before is not None:
        lines.append(f"before training: {before['accuracy']:.2%} of the validation images")
    if team.size > 1:
        lines.append(f"{team.size} processes with {settings.batch_size // team.size} images each")
    if resume:
        going = f"{run.epoch} of {settings.epochs} epochs are done: going on"
        lines.append(going if run.epoch else "nothing was found to resume: beginning")
    return lines


def _remembered(network: "Network") -> "Network":
    """A network that knows the command which made it."""
    from legr_cli.networks import with_command

    return replace(network, notes=with_command(network.notes, typed()))


def _show(session: "Session", files: "Files", reached: "Line", as_json: bool) -> None:
    """What was gained, and the network's name on stdout; or everything as JSON."""
    before = reached["before"]
    if as_json:
        about = ("before", "epochs", "best_epoch", "validation", "test", "seconds", "settings")
        facts = {key: reached[key] for key in about if key in reached}
        show.emit({"legr": __version__, "file": str(files.out), **facts})
        return
    table = show.table("accuracy", "network", "validation", "test", left=("network",))
    table.add_row("before", f"{before['accuracy']:.2%}", "")
    after = f"after epoch {reached['best_epoch']} of {reached['epochs']}"
    scores = (reached[split] for split in ("validation", "test"))
    shown = ("" if score is None else f"{score['accuracy']:.2%}" for score in scores)
    table.add_row(after if reached["epochs"] else "with new statistics", *shown)
    screen = show.console()
    show.put(screen, table)
    held_out = reached["validation"]
    if held_out is not None and held_out["accuracy"] < before["accuracy"]:
        note = "no epoch was as good on the validation images as the network before training"
        screen.print(f"{note}: a lower --lr, or more epochs?", style="dim")
    if reached["test"] is None:
        screen.print(f"{session.data.spec} has no test images", style="dim")
    show.line(str(files.out))
