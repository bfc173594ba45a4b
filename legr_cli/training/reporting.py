"""Progress events of a training run, and the messages before it starts."""

from legr_cli.data.dataset import Data, described, doubts
from legr_cli.journal import Line
from legr_cli.progress import Message, Progress, Report, resume_text
from legr_cli.training.meter import StepProgress
from legr_cli.training.result import TrainingCallbacks
from legr_cli.training.run import Run
from legr_cli.training.scores import headline, shown
from legr_cli.training.setup import TrainingSetup


def training_callbacks(
    setup: TrainingSetup, run: Run, resume: bool, progress: Report
) -> TrainingCallbacks:
    """Callbacks that report a training run as progress events."""
    epochs = setup.settings.epochs
    total = epochs * run.steps

    def started(before: Line | None) -> None:
        for text in _opening_messages(setup, run, before, resume):
            progress(Message(text))

    def step(state: StepProgress) -> None:
        done = (state.epoch - 1) * state.steps + state.step
        train = [] if state.accuracy is None else [f"train {state.accuracy:.2%}"]
        facts = [f"loss {state.loss:.4f}", *train, f"{state.images_per_second:.0f} images/s"]
        title = f"epoch {state.epoch}/{epochs}"
        progress(Progress(done, total, title, (*facts, *_best(run))))

    def epoch(line: Line) -> None:
        facts = [
            f"loss {line['train_loss']:.4f}",
            f"{_measured_on(run.data)} {shown(line)}",
            f"{line['images_per_second']:.0f} images/s",
            *_best(run),
        ]
        title = f"epoch {line['epoch']}/{epochs}"
        progress(Progress(line["epoch"] * run.steps, total, title, tuple(facts), milestone=True))

    return TrainingCallbacks(started, step, epoch)


def _measured_on(data: Data) -> str:
    """What to call the images that each epoch is evaluated on."""
    return "validation" if data.held_out else f"{len(data.validation)} training images"


def _best(run: Run) -> list[str]:
    """`["best 91.20% (#3)"]`; empty before the first epoch, and if no images are held out."""
    if run.best_line is None or not run.data.held_out:
        return []
    epoch = run.best_so_far["best_epoch"]
    return [f"best {shown(run.best_line)} ({f'#{epoch:.0f}' if epoch else 'before training'})"]


def _opening_messages(
    setup: TrainingSetup, run: Run, before: Line | None, resume: bool
) -> list[str]:
    """What is trained and how, and warnings about likely mistakes."""
    settings, data, group = setup.settings, setup.data, setup.group
    plural = "" if settings.epochs == 1 else "s"
    images = f"{len(data.train)} training and {len(data.validation)} validation images"
    if not data.held_out:
        images = (
            f"all {len(data.train)} training images, evaluated on {len(data.validation)} of them"
        )
    messages = [
        f"{setup.network.arch} on {images}, preprocessed as {data.feed}",
        f"recipe {settings.recipe}: {settings.epochs} epoch{plural}, learning rate {settings.lr:g}",
        *described(data, training=True),
        *doubts(data),
    ]
    if before is not None:  # on resume, only the leader knows it
        messages.append(f"validation {headline(before)} before training: {shown(before)}")
    if group.size > 1:
        messages.append(
            f"{group.size} processes with {settings.batch_size // group.size} images per batch each"
        )
    if resume:
        messages.append(resume_text(run.epoch, settings.epochs, "epochs"))
    return messages
