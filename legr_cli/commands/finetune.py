"""`legr finetune`."""

from pathlib import Path
from typing import Annotated

import typer

from legr_cli.commands import options, training_options


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
    recipe: training_options.Recipe = None,
    show_recipes: training_options.ShowRecipes = False,
    epochs: training_options.Epochs = None,
    lr: training_options.LearningRate = None,
    schedule: training_options.Schedule = None,
    drops: training_options.Drops = None,
    drop_by: training_options.DropBy = None,
    warmup: training_options.Warmup = None,
    momentum: training_options.Momentum = None,
    nesterov: training_options.Nesterov = None,
    weight_decay: training_options.WeightDecay = None,
    batch_size: training_options.BatchSize = None,
    patience: training_options.Patience = None,
    seed: training_options.Seed = 0,
    teacher: training_options.Teacher = None,
    teacher_arch: training_options.TeacherArch = None,
    teacher_weight: training_options.TeacherWeight = None,
    temperature: training_options.Temperature = None,
    label_smoothing: training_options.LabelSmoothing = None,
    clip: training_options.Clip = None,
    ema: training_options.Ema = None,
    freeze_bn: training_options.FreezeBn = None,
    all_images: training_options.AllImages = False,
    bn_recalibrate: training_options.BnRecalibrate = False,
    new_head: Annotated[
        bool,
        typer.Option(
            "--new-head",
            rich_help_panel=options.NETWORK,
            help="Replace the last layer with a new one for the classes of the dataset, to "
            "transfer a network to your own images.",
        ),
    ] = False,
    score: options.ScoreFunction = None,
    loss: options.LossFunction = None,
    outputs: options.Outputs = None,
    ignore_index: options.IgnoreIndex = 255,
    normalize: options.Normalize = None,
    resize: options.Resize = None,
    crop: options.Crop = None,
    transform: options.Transform = None,
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
    weights: options.Weights = None,
    classes: options.Classes = None,
    input_shape: options.InputShape = None,
    as_json: options.Json = False,
) -> None:
    """Fine-tune a pruned or dense network, or train one from scratch.

    Keeps the weights of the epoch with the best score on held-out validation images, and evaluates
    only those on the test images. With a --teacher, images need no labels (images:DIR). An
    interrupted run can be resumed with --resume from its last complete epoch; the result matches an
    uninterrupted one. To train on several GPUs: torchrun --nproc-per-node N -m legr_cli finetune …

    Examples:

      legr finetune small.safetensors --data cifar10:DIR --out tuned.safetensors

      legr finetune small.safetensors --teacher dense.pth --data folder:DIR --out t.safetensors

      legr finetune --arch resnet56 --data cifar10:DIR --out dense.safetensors
    """
    from legr_cli.commands.finetune_view import show_trained
    from legr_cli.commands.invocation import command_line
    from legr_cli.commands.progress import resumable
    from legr_cli.shapes import parse_input
    from legr_cli.training.finetune import finetune_network
    from legr_cli.training.inputs import NetworkSource
    from legr_cli.training.resume import RunFiles

    images = options.images_from(locals())
    task = options.task_from(locals(), images, checkpoint)
    settings = training_options.training_settings(locals(), task)
    shape = parse_input(input_shape)
    source = NetworkSource(checkpoint, arch, classes, shape, new_head, weights)
    with resumable() as display:
        result = finetune_network(
            source,
            images,
            settings,
            RunFiles(out, resume, force),
            teacher=None if teacher is None else (teacher, teacher_arch),
            task=task,
            device=device,
            compiled=compiled,
            loaders=loaders,
            recalibrate_only=bn_recalibrate,
            command=command_line(),
            progress=display.report,
        )
    if result is not None:
        show_trained(result, data, out, as_json)
