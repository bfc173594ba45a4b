"""`legr finetune`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legr_cli.commands import options
from legr_cli.commands.options import setting
from legr_cli.errors import SettingError

if TYPE_CHECKING:
    from legr_cli.settings import Training

_RECIPE, _TEACHER, _EXTRAS = "Recipe", "Knowledge distillation", "Regularization and extras"


def _list_recipes(requested: bool) -> None:
    """List the recipes and exit."""
    if requested:
        from legr_cli.commands.finetune_view import show_recipes

        show_recipes()
        raise typer.Exit


def finetune(
    data: options.Data,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Trained network to write, NAME.safetensors. Epoch results go to "
            "NAME.epochs.jsonl; NAME.state holds the training state until training finishes.",
        ),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="CHECKPOINT",
            show_default=False,
            help="Network to train: a file written by legr, a weights file for --arch, or "
            "torchvision:NAME. If omitted, --arch is trained from scratch.",
        ),
    ] = None,
    resume: options.Resume = False,
    force: options.Force = False,
    recipe: Annotated[
        str | None,
        setting(
            _RECIPE,
            "NAME",
            "Training recipe: quick, cifar, cifar10-long, imagenet, birds or cifar-train.",
            "quick; cifar-train from scratch",
        ),
    ] = None,
    show_recipes: Annotated[
        bool,
        typer.Option(
            "--recipes",
            callback=_list_recipes,
            is_eager=True,
            rich_help_panel=_RECIPE,
            help="List all recipes with their settings and exit.",
        ),
    ] = False,
    epochs: Annotated[
        int | None,
        setting(_RECIPE, "N", "Number of epochs; the recipe's schedule is scaled to fit."),
    ] = None,
    lr: Annotated[float | None, setting(_RECIPE, "RATE", "Peak learning rate.")] = None,
    schedule: Annotated[
        str | None,
        setting(
            _RECIPE,
            "steps|one-cycle",
            "Learning rate schedule: drop at the epochs in --drops (steps), or follow a cosine to "
            "0 (one-cycle).",
        ),
    ] = None,
    drops: Annotated[
        str | None,
        setting(
            _RECIPE, "N,N,…", "Epochs after which the learning rate drops, or none to keep it."
        ),
    ] = None,
    drop_by: Annotated[
        float | None,
        setting(_RECIPE, "FACTOR", "Factor that each drop divides the learning rate by."),
    ] = None,
    warmup: Annotated[
        float | None,
        setting(_RECIPE, "SHARE", "Share of the training spent on learning rate warm-up from 0."),
    ] = None,
    momentum: Annotated[
        float | None, setting(_RECIPE, "MOMENTUM", "Momentum of SGD.", "0.9")
    ] = None,
    nesterov: Annotated[
        bool | None,
        typer.Option(
            "--nesterov/--no-nesterov",
            show_default="nesterov",
            rich_help_panel=_RECIPE,
            help="Use Nesterov momentum.",
        ),
    ] = None,
    weight_decay: Annotated[
        float | None, setting(_RECIPE, "RATE", "Weight decay, applied to all parameters.", "5e-4")
    ] = None,
    batch_size: Annotated[
        int | None,
        setting(_RECIPE, "N", "Images per batch, summed over all processes.", "128"),
    ] = None,
    patience: Annotated[
        int | None,
        setting(
            _RECIPE,
            "N",
            "Stop early after this many epochs without improvement; 0 disables early stopping.",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            rich_help_panel=_RECIPE,
            help="Random seed; also selects the held-out images. On a CPU, the same seed gives the "
            "same weights.",
        ),
    ] = 0,
    teacher: Annotated[
        str | None,
        setting(
            _TEACHER, "CHECKPOINT", "Teacher network to distill from, such as the dense network."
        ),
    ] = None,
    teacher_arch: Annotated[
        str | None,
        setting(
            _TEACHER,
            "NAME",
            "Architecture of the teacher, if its file does not record it.",
            "same as the network's",
        ),
    ] = None,
    teacher_weight: Annotated[
        float | None,
        setting(
            _TEACHER,
            "SHARE",
            "Weight of the distillation loss; the loss on the labels gets the rest.",
            "0.9",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        setting(_TEACHER, "T", "Temperature that softens both outputs for distillation.", "4"),
    ] = None,
    label_smoothing: Annotated[
        float | None, setting(_EXTRAS, "SHARE", "Amount of label smoothing.", "0")
    ] = None,
    clip: Annotated[
        float | None,
        setting(_EXTRAS, "NORM", "Clip the gradient to this norm; 0 disables clipping.", "0"),
    ] = None,
    ema: Annotated[
        float | None,
        setting(
            _EXTRAS,
            "DECAY",
            "Decay of an exponential moving average of the weights, which is then evaluated and "
            "saved, such as 0.999; 0 disables it.",
            "0",
        ),
    ] = None,
    all_images: Annotated[
        bool,
        typer.Option(
            "--all-images",
            rich_help_panel=_EXTRAS,
            help="Also train on the validation images and keep the last epoch; for the final run, "
            "once all settings are chosen.",
        ),
    ] = False,
    bn_recalibrate: Annotated[
        bool,
        typer.Option(
            "--bn-recalibrate",
            rich_help_panel=_EXTRAS,
            help="Do not train; only re-estimate BatchNorm statistics on 1,024 training images.",
        ),
    ] = False,
    new_head: Annotated[
        bool,
        typer.Option(
            "--new-head",
            rich_help_panel=options.NETWORK,
            help="Replace the last layer with a new one for the classes of the dataset, to "
            "transfer a network to your own images.",
        ),
    ] = False,
    normalize: options.Normalize = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    random_crop: options.RandomCrop = None,
    flip: options.Flip = None,
    ignore_class_names: options.IgnoreClassNames = False,
    download: options.Download = False,
    device: options.Device = "auto",
    amp: options.Amp = False,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile",
            rich_help_panel=options.HARDWARE,
            help="Compile the network with torch.compile: a slower start, then faster steps.",
        ),
    ] = False,
    loaders: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            callback=options.within("--loaders", 0, 1024),
            show_default="number of cores",
            rich_help_panel=options.HARDWARE,
            help="Number of data loading processes, used for images larger than 96x96.",
        ),
    ] = None,
    arch: options.Arch = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Fine-tune a pruned or dense network, or train one from scratch.

    Writes the weights of the epoch with the highest accuracy on held-out validation images; only
    these are evaluated on the test images. An interrupted run can be resumed with --resume from its
    last complete epoch; the result matches an uninterrupted one. To train on several GPUs:
    torchrun --nproc-per-node N -m legr_cli finetune …

    Examples:

      legr finetune nets/resnet56-flops40.safetensors --data cifar10:DIR --out tuned.safetensors

      legr finetune small.safetensors --teacher dense.pth --data folder:DIR --out t.safetensors

      legr finetune --arch resnet56 --recipe cifar-train --data cifar10:DIR --out dense.safetensors
    """
    from legr_cli.commands.finetune_view import show_trained
    from legr_cli.commands.invocation import command_line
    from legr_cli.commands.progress import resumable
    from legr_cli.data.feed import parse_statistics
    from legr_cli.settings import Pictures, parse_input
    from legr_cli.training.finetune import finetune_network
    from legr_cli.training.inputs import Images, Start
    from legr_cli.training.resume import Files

    given = locals()
    if bn_recalibrate:
        _check_recalibrate(checkpoint, given)
    settings = _settings(given)
    start = Start(checkpoint, arch, classes, parse_input(input_shape), new_head)
    images = Images(
        data,
        parse_statistics(normalize),
        download,
        hold_out=not all_images,
        pictures=Pictures(resize=resize, crop=crop, random_crop=random_crop, flip=flip),
        ignore_class_names=ignore_class_names,
    )
    with resumable() as display:
        result = finetune_network(
            start,
            images,
            settings,
            Files(out, resume, force),
            teacher=None if teacher is None else (teacher, teacher_arch),
            device=device,
            compiled=compiled,
            loaders=loaders,
            recalibrate_only=bn_recalibrate,
            command=command_line(),
            progress=display.report,
        )
    if result is not None:
        show_trained(result, data, out, as_json)


_OVERRIDES = (
    *("epochs", "lr", "schedule", "drops", "drop_by", "warmup", "momentum", "nesterov"),
    *("weight_decay", "batch_size", "patience", "teacher_weight", "temperature"),
    *("label_smoothing", "clip", "ema"),
)


def _settings(given: dict[str, Any]) -> "Training":
    """The recipe's settings with what the options override."""
    from legr_cli.settings import parse_drops
    from legr_cli.training.recipes import settings_of

    if given["teacher"] is None:
        _check_no_teacher(given)
    if given["checkpoint"] is None and given["arch"] is None:
        raise SettingError("pass a CHECKPOINT, or --arch to train from scratch")
    overrides = {name: given[name] for name in _OVERRIDES if given[name] is not None}
    if "drops" in overrides:
        overrides["drops"] = parse_drops(overrides["drops"])
    recipe = given["recipe"] or ("cifar-train" if given["checkpoint"] is None else "quick")
    settings = settings_of(recipe, **overrides, amp=given["amp"], seed=given["seed"])
    if given["all_images"] and settings.patience:
        raise SettingError(
            "--all-images leaves no validation images for early stopping: pass --patience 0"
        )
    return settings


def _check_recalibrate(checkpoint: str | None, given: dict[str, Any]) -> None:
    """Reject training options with --bn-recalibrate."""
    from legr_cli.settings import option

    if checkpoint is None:
        raise SettingError("--bn-recalibrate requires a CHECKPOINT")
    names = (*_OVERRIDES, "recipe", "teacher", "amp", "all_images", "resume", "compiled")
    for name in (*names, "random_crop", "flip"):
        if given[name] is not None and given[name] is not False:
            shown = "--compile" if name == "compiled" else option(name)
            raise SettingError(f"--bn-recalibrate does not train: remove {shown}")


def _check_no_teacher(given: dict[str, Any]) -> None:
    """Reject options about a teacher where there is none."""
    from legr_cli.settings import option

    for name in ("teacher_arch", "teacher_weight", "temperature"):
        if given[name] is not None:
            raise SettingError(f"{option(name)} requires --teacher")
