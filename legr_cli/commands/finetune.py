"""`legr finetune`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from legr_cli.commands import options
from legr_cli.commands.options import setting
from legr_cli.errors import SettingError

_RECIPE, _TEACHER, _EXTRAS = "The recipe", "Learning from a teacher", "Extras"


def _recipes(wanted: bool) -> None:
    """Show the recipes and stop."""
    if not wanted:
        return
    from legr_cli.commands import output
    from legr_cli.training.recipes import RECIPES, settings_of

    title = "SGD, Nesterov 0.9, weight decay 5e-4, batch 128; every number is an option"
    columns = ("recipe", "epochs", "learning rate", "patience", "for")
    table = output.table(title, *columns, left=("recipe", "learning rate", "for"))
    for name, recipe in RECIPES.items():
        settings = settings_of(name)
        falls = "/".join(f"{drop:g}" for drop in settings.drops)
        rate = f"{settings.lr:g}, ÷{settings.drop_by:g} at {falls}"
        if settings.schedule == "one-cycle":
            rate = f"{settings.lr:g}, one-cycle"
        patience = str(settings.patience or "")
        table.add_row(name, str(settings.epochs), rate, patience, recipe.what_for)
    output.put(output.console(stderr=False), table)
    raise typer.Exit


def finetune(
    data: options.Data,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="The trained network, NAME.safetensors; its epochs go beside it as "
            "NAME.epochs.jsonl, and NAME.state is there until it is done.",
        ),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="CHECKPOINT",
            show_default=False,
            help="A network that legr wrote, a weights file of --arch, or torchvision:NAME. "
            "Without it, --arch is trained from scratch.",
        ),
    ] = None,
    resume: options.Resume = False,
    force: options.Force = False,
    recipe: Annotated[
        str | None,
        setting(
            _RECIPE,
            "NAME",
            "quick, cifar, cifar10-long, imagenet, birds or cifar-train.",
            "quick, from scratch cifar-train",
        ),
    ] = None,
    show_recipes: Annotated[  # noqa: ARG001
        bool,
        typer.Option(
            "--recipes",
            callback=_recipes,
            is_eager=True,
            rich_help_panel=_RECIPE,
            help="Show all recipes with their numbers, and stop.",
        ),
    ] = False,
    epochs: Annotated[
        int | None, setting(_RECIPE, "N", "Another length; the recipe keeps its shape.")
    ] = None,
    lr: Annotated[float | None, setting(_RECIPE, "RATE", "The highest learning rate.")] = None,
    schedule: Annotated[
        str | None,
        setting(_RECIPE, "steps|one-cycle", "How it falls: at --drops, or by a cosine to 0."),
    ] = None,
    drops: Annotated[
        str | None, setting(_RECIPE, "N,N,…", "Epochs after which it falls; none: never.")
    ] = None,
    drop_by: Annotated[
        float | None, setting(_RECIPE, "FACTOR", "… to so many times less each time.")
    ] = None,
    warmup: Annotated[
        float | None,
        setting(_RECIPE, "SHARE", "Share of the training in which it first rises from 0."),
    ] = None,
    momentum: Annotated[float | None, setting(_RECIPE, "SHARE", "Of SGD.", "0.9")] = None,
    nesterov: Annotated[
        bool | None,
        typer.Option(
            "--nesterov/--no-nesterov",
            show_default="nesterov",
            rich_help_panel=_RECIPE,
            help="Its momentum looks ahead, or not.",
        ),
    ] = None,
    weight_decay: Annotated[
        float | None, setting(_RECIPE, "RATE", "Of all weights.", "5e-4")
    ] = None,
    batch_size: Annotated[
        int | None,
        setting(_RECIPE, "N", "Images in a batch, of all processes together.", "128"),
    ] = None,
    patience: Annotated[
        int | None,
        setting(_RECIPE, "N", "Stop after so many epochs without a better one; 0: never."),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            rich_help_panel=_RECIPE,
            help="Of all that is random, the images held out among it. On a CPU the same seed "
            "gives the same weights.",
        ),
    ] = 0,
    teacher: Annotated[
        str | None,
        setting(
            _TEACHER, "CHECKPOINT", "Learn from this network's answers, such as the dense one's."
        ),
    ] = None,
    teacher_arch: Annotated[
        str | None,
        setting(
            _TEACHER,
            "NAME",
            "Its architecture, where its file does not say.",
            "the network's own",
        ),
    ] = None,
    teacher_weight: Annotated[
        float | None,
        setting(
            _TEACHER,
            "SHARE",
            "Of its answers in the loss; the labels have the rest.",
            "0.9",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        setting(_TEACHER, "T", "Both answers are softened by it before they are compared.", "4"),
    ] = None,
    label_smoothing: Annotated[
        float | None, setting(_EXTRAS, "SHARE", "Of each label, for all classes.", "0")
    ] = None,
    clip: Annotated[
        float | None, setting(_EXTRAS, "NORM", "Largest norm of a gradient.", "0: any")
    ] = None,
    ema: Annotated[
        float | None,
        setting(
            _EXTRAS,
            "DECAY",
            "Measure and write a moving average of the weights, such as 0.999.",
            "0: none",
        ),
    ] = None,
    all_images: Annotated[
        bool,
        typer.Option(
            "--all-images",
            rich_help_panel=_EXTRAS,
            help="Train on the validation images, too, and keep the last epoch: when all choices "
            "are made.",
        ),
    ] = False,
    bn_recalibrate: Annotated[
        bool,
        typer.Option(
            "--bn-recalibrate",
            rich_help_panel=_EXTRAS,
            help="Train nothing: only re-estimate BatchNorm statistics on 1,024 training images.",
        ),
    ] = False,
    new_head: Annotated[
        bool,
        typer.Option(
            "--new-head",
            rich_help_panel=options.NETWORK,
            help="Begin with a new last layer, for the classes of the data: to bring a network to "
            "images of your own.",
        ),
    ] = False,
    normalize: options.Normalize = None,
    download: options.Download = False,
    device: options.Device = "auto",
    amp: options.Amp = False,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile",
            rich_help_panel=options.MACHINE,
            help="Compile the network with torch.compile: slower to begin, then faster.",
        ),
    ] = False,
    loaders: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=1024,
            metavar="N",
            show_default="the cores",
            rich_help_panel=options.MACHINE,
            help="Processes that read images larger than 96x96 from their files.",
        ),
    ] = None,
    arch: options.Arch = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Train a pruned, dense or fresh network, and write the best there was.

    The best is the one with the highest accuracy on validation images, which are never trained on;
    it alone is then measured on the test images. Stopped at any moment, a training goes on with
    --resume from its last whole epoch and ends as if it had never been stopped. On several GPUs:
    torchrun --nproc-per-node N -m legr_cli finetune …

    Examples:

      legr finetune nets/resnet56-flops40.safetensors --data cifar10:DIR --out tuned.safetensors

      legr finetune small.safetensors --teacher dense.pth --data folder:DIR --out t.safetensors

      legr finetune --arch resnet56 --recipe cifar-train --data cifar10:DIR --out dense.safetensors
    """
    from legr_cli.commands.finetune_view import recalibrated, trained
    from legr_cli.commands.output import console, half_helps
    from legr_cli.data.dataset import parse_statistics
    from legr_cli.settings import parse_drops, parse_input
    from legr_cli.training.inputs import Images, Start, open_both, open_teacher
    from legr_cli.training.process_group import process_group
    from legr_cli.training.recipes import settings_of
    from legr_cli.training.resume import Files
    from legr_cli.training.setup import TrainingSetup

    numbers = {
        "epochs": epochs,
        "lr": lr,
        "schedule": schedule,
        "drops": None if drops is None else parse_drops(drops),
        "drop_by": drop_by,
        "warmup": warmup,
        "momentum": momentum,
        "nesterov": nesterov,
        "weight_decay": weight_decay,
        "batch_size": batch_size,
        "patience": patience,
        "teacher_weight": teacher_weight,
        "temperature": temperature,
        "label_smoothing": label_smoothing,
        "clip": clip,
        "ema": ema,
    }
    given = {name: value for name, value in numbers.items() if value is not None}
    if bn_recalibrate:
        others = {"recipe": recipe, "teacher": teacher, "amp": amp or None}
        others |= {"all_images": all_images or None}
        others |= {"resume": resume or None, "compile": compiled or None}
        _check_alone(checkpoint, {**given, **others})
    if teacher is None:
        _check_untaught(given, teacher_arch)
    if checkpoint is None and arch is None:
        raise SettingError("name a CHECKPOINT, or an --arch to train from scratch")
    usual = "cifar-train" if checkpoint is None else "quick"
    settings = settings_of(recipe or usual, **given, amp=amp, seed=seed)
    if all_images and settings.patience:
        raise SettingError("--all-images leaves --patience nothing to go by: pass --patience 0")
    shape = parse_input(input_shape) if input_shape else None
    start = Start(checkpoint, arch, classes, shape, new_head)
    statistics = parse_statistics(normalize) if normalize else None
    images = Images(data, statistics, download, hold_out=not all_images)
    files = Files(out, resume, force)
    with process_group(device) as group:
        if group.is_leader:
            files.check()
        settings = replace(
            settings, amp=amp and half_helps(group.device, quiet=not group.is_leader)
        )
        with console(quiet=not group.is_leader).status("reading the network and the images"):
            network, found = open_both(start, images, seed, group)
            master = None
            if teacher is not None:
                master = open_teacher(teacher, teacher_arch, network, found)
        setup = TrainingSetup(network, found, settings, group, master)
        run = setup.run(compiled, loaders)
        if bn_recalibrate:
            recalibrated(setup, run, files, as_json)
        else:
            trained(setup, run, files, as_json)


def _check_alone(checkpoint: str | None, given: dict[str, Any]) -> None:
    """Where nothing is trained there is nothing to set about it."""
    from legr_cli.settings import option

    if checkpoint is None:
        raise SettingError("--bn-recalibrate trains nothing: name a CHECKPOINT")
    for name, value in given.items():
        if value is not None:
            raise SettingError(f"--bn-recalibrate trains nothing: leave {option(name)} out")


def _check_untaught(given: dict[str, Any], teacher_arch: str | None) -> None:
    """What is said of a teacher needs one."""
    from legr_cli.settings import option

    said = {**given, "teacher_arch": teacher_arch}
    for name in ("teacher_arch", "teacher_weight", "temperature"):
        if said.get(name) is not None:
            raise SettingError(f"{option(name)} is about a teacher: name it with --teacher")
