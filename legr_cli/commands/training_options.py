"""Options of `legr finetune` that describe the training, and the settings that they make."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legr_cli.commands.options import flag, setting, show_and_exit
from legr_cli.errors import SettingError

if TYPE_CHECKING:
    from legr_cli.settings import Training
    from legr_cli.training.tasks import Task

_RECIPE, _TEACHER, _EXTRAS = "Recipe", "Knowledge distillation", "Regularization and extras"


def _show_recipes() -> None:
    """List the recipes."""
    from legr_cli.commands.finetune_view import show_recipes

    show_recipes()


Recipe = Annotated[
    str | None,
    setting(
        _RECIPE,
        "NAME",
        "Training recipe: quick, repaired, match, cifar, cifar10-long, imagenet, birds or "
        "cifar-train.",
        "quick; repaired for repaired networks with a --teacher; match for images without labels; "
        "cifar-train from scratch",
    ),
]
ShowRecipes = Annotated[
    bool,
    typer.Option(
        "--recipes",
        callback=show_and_exit(_show_recipes),
        is_eager=True,
        rich_help_panel=_RECIPE,
        help="List all recipes with their settings and exit.",
    ),
]
Epochs = Annotated[
    int | None,
    setting(_RECIPE, "N", "Number of epochs; the recipe's schedule is scaled to fit."),
]
LearningRate = Annotated[float | None, setting(_RECIPE, "RATE", "Peak learning rate.")]
Schedule = Annotated[
    str | None,
    setting(
        _RECIPE,
        "steps|one-cycle",
        "Learning rate schedule: drop at the epochs in --drops (steps), or follow a cosine to 0 "
        "(one-cycle).",
    ),
]
Drops = Annotated[
    str | None,
    setting(
        _RECIPE,
        "N,N,…|none",
        "Epochs after which the learning rate drops; none keeps it constant.",
    ),
]
DropBy = Annotated[
    float | None,
    setting(_RECIPE, "FACTOR", "Factor that each drop divides the learning rate by."),
]
Warmup = Annotated[
    float | None,
    setting(
        _RECIPE,
        "SHARE",
        "Share of the training over which the learning rate warms up from 0 to its peak.",
    ),
]
Momentum = Annotated[float | None, setting(_RECIPE, "MOMENTUM", "Momentum of SGD.", "0.9")]
Nesterov = Annotated[
    bool | None,
    typer.Option(
        "--nesterov/--no-nesterov",
        show_default="nesterov",
        rich_help_panel=_RECIPE,
        help="Use Nesterov momentum.",
    ),
]
WeightDecay = Annotated[
    float | None, setting(_RECIPE, "RATE", "Weight decay, applied to all parameters.", "5e-4")
]
BatchSize = Annotated[
    int | None,
    setting(_RECIPE, "N", "Number of images per batch, summed over all processes.", "128"),
]
Patience = Annotated[
    int | None,
    setting(
        _RECIPE,
        "N",
        "Stop early after this many epochs without improvement; 0 disables early stopping.",
    ),
]
Seed = Annotated[
    int,
    setting(
        _RECIPE,
        "N",
        "Random seed; also selects the held-out images. On a CPU, the same seed gives the same "
        "weights.",
    ),
]
Teacher = Annotated[
    str | None,
    setting(_TEACHER, "CHECKPOINT", "Teacher network to distill from, such as the dense network."),
]
TeacherArch = Annotated[
    str | None,
    setting(
        _TEACHER,
        "NAME",
        "Architecture of the teacher, if its file does not record it.",
        "same as the network's",
    ),
]
TeacherWeight = Annotated[
    float | None,
    setting(
        _TEACHER,
        "SHARE",
        "Weight of the distillation loss; the loss on the labels gets the rest.",
        "0.9",
    ),
]
Temperature = Annotated[
    float | None,
    setting(
        _TEACHER,
        "T",
        "Temperature that softens the outputs of network and teacher for distillation.",
        "4",
    ),
]
LabelSmoothing = Annotated[
    float | None,
    setting(_EXTRAS, "SHARE", "Amount of label smoothing; 0 disables it.", "0"),
]
FreezeBn = Annotated[
    bool | None,
    typer.Option(
        "--freeze-bn/--no-freeze-bn",
        show_default="freeze-bn in the recipe match, else no-freeze-bn",
        rich_help_panel=_EXTRAS,
        help="Keep the BatchNorm statistics as they are and train the weights alone: for networks "
        "that were repaired, for small batches and for few images.",
    ),
]
Clip = Annotated[
    float | None,
    setting(_EXTRAS, "NORM", "Maximum norm to clip the gradient to; 0 disables clipping.", "0"),
]
Ema = Annotated[
    float | None,
    setting(
        _EXTRAS,
        "DECAY",
        "Decay of an exponential moving average of the weights, such as 0.999; the average is then "
        "evaluated and saved. 0 disables it.",
        "0",
    ),
]
AllImages = Annotated[
    bool,
    flag(
        _EXTRAS,
        "--all-images",
        "Also train on the validation images and keep the last epoch; for the final run, once all "
        "settings are chosen.",
    ),
]
BnRecalibrate = Annotated[
    bool,
    flag(
        _EXTRAS,
        "--bn-recalibrate",
        "Do not train; only re-estimate BatchNorm statistics on 1,024 training images.",
    ),
]


def training_settings(given: dict[str, Any], task: "Task") -> "Training":
    """The recipe's settings, with what the options override."""
    from legr_cli.settings import parse_drops
    from legr_cli.training.recipes import default_recipe, settings_of

    _check(given)
    overrides = {name: given[name] for name in _overrides() if given[name] is not None}
    if "drops" in overrides:
        overrides["drops"] = parse_drops(overrides["drops"])
    notes, labelled = _notes(given["checkpoint"]), not task.needs_reference
    recipe = given["recipe"] or default_recipe(notes, bool(given["teacher"]), labelled)
    settings = settings_of(recipe, **overrides, amp=given["amp"], seed=given["seed"])
    if given["all_images"] and settings.patience:
        raise SettingError(
            "--all-images leaves no validation images for early stopping: pass --patience 0"
        )
    return settings


def _notes(checkpoint: str | None) -> dict[str, Any] | None:
    """The notes of the network to train: empty where its file has none, None without a file."""
    from legr_cli.models.card import read_notes

    if checkpoint is None:
        return None
    path = Path(checkpoint)
    return read_notes(path) if path.suffix == ".safetensors" and path.is_file() else {}


def _overrides() -> list[str]:
    """The settings that a recipe has and an option of the same name overrides."""
    from legr_cli.settings import Training

    apart = ("recipe", "amp", "seed")
    return [field.name for field in fields(Training) if field.name not in apart]


def _check(given: dict[str, Any]) -> None:
    """Reject options that do not go together."""
    from legr_cli.arguments import option

    if given["bn_recalibrate"]:
        _check_recalibrate(given)
    for name in ("teacher_arch", "teacher_weight", "temperature"):
        if given["teacher"] is None and given[name] is not None:
            raise SettingError(f"{option(name)} requires --teacher")
    if given["checkpoint"] is None and given["weights"] is not None:
        raise SettingError("--weights requires a CHECKPOINT")
    if given["checkpoint"] is None and given["arch"] is None:
        raise SettingError("pass a CHECKPOINT, or --arch to train from scratch")


def _check_recalibrate(given: dict[str, Any]) -> None:
    """Reject training options with --bn-recalibrate."""
    from legr_cli.arguments import option

    if given["checkpoint"] is None:
        raise SettingError("--bn-recalibrate requires a CHECKPOINT")
    names = (*_overrides(), "recipe", "teacher", "amp", "all_images", "resume", "compiled")
    for name in (*names, "random_crop", "flip"):
        if given[name] is not None and given[name] is not False:
            shown = "--compile" if name == "compiled" else option(name)
            raise SettingError(f"--bn-recalibrate does not train: remove {shown}")
