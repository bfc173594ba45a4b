"""Tasks: the loss that training minimizes, and the score that decides which network is best.

The data decides which task it is: labelled images are for classification, pairs of pictures for
segmentation, and images without labels for closeness, whose targets are the outputs of the dense
network. A loss and a score of the user's own make a task of any other kind.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from legr_cli.channels.structures import batch_size, map_tensors, tensors
from legr_cli.data.pixels import IGNORED
from legr_cli.errors import ModelError, SettingError, first_line
from legr_cli.repairs.closeness import Closeness, closeness_sums, is_classification, of_structure
from legr_cli.settings import OUTPUTS
from legr_cli.training.scores import ACCURACY, WORST, Score

BatchFunction = Callable[[Any, Any], Any]  # outputs, targets → mean over the batch
Reference = Callable[[Tensor], Any]  # images → outputs of the network to match


@dataclass(frozen=True)
class Task:
    """The loss and the score of a network's outputs."""

    name: str
    loss: Callable[[Any, Any, float], Tensor]  # outputs, targets, label smoothing → batch mean
    sums: Callable[[Any, Any], Tensor]  # outputs, targets → a vector, summed over all batches
    score: Callable[[list[float]], Score]  # from the sums over all batches
    targets: str = "any"  # or "classes", "maps" of classes, or "outputs" of the dense network
    values: bool = False  # whether images × classes are numbers such as angles, not class scores

    @property
    def record(self) -> dict[str, str]:
        """How journals name the task; nothing for the one that they all had at first."""
        return {} if self.is_classification else {"task": self.name}

    @property
    def is_classification(self) -> bool:
        """Whether targets are classes, and the score is how often the largest output is right."""
        return self.name == "classification"

    @property
    def needs_reference(self) -> bool:
        """Whether the targets are the outputs of another network."""
        return self.targets == "outputs"


def with_targets(
    task: Task, batches: Iterable[tuple[Tensor, Any]], reference: Reference | None
) -> Iterator[tuple[Tensor, Any]]:
    """The batches with the task's targets: the outputs of `reference`, where it needs them."""
    for images, targets in batches:
        if not task.needs_reference:
            yield images, targets
        elif len(images):
            assert reference is not None
            yield images, reference(images)


def _cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Mean cross entropy of class indices."""
    return F.cross_entropy(logits, labels, label_smoothing=smoothing)


def _classification_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """Top-1 and top-5 hits, cross entropy and number of images, summed over a batch."""
    hits = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
    loss = F.cross_entropy(logits, labels, reduction="sum")
    return torch.stack(
        [hits[:, 0].sum(), hits.any(1).sum(), loss, torch.full_like(loss, len(labels))]
    )


def _classification_score(sums: list[float]) -> Score:
    """Top-1 and top-5 accuracy."""
    top1, top5, loss, images = sums
    figures = {ACCURACY: top1 / images, "top 5": top5 / images}
    return Score(top1 / images, loss / images, round(images), figures)


def class_maps(outputs: Any) -> Tensor:
    """A segmenter's logits: images × classes × height × width.

    Of several outputs it is the one that a dictionary calls `out`, as torchvision does, or else the
    first with this number of dimensions.
    """
    chosen = outputs["out"] if isinstance(outputs, Mapping) and "out" in outputs else outputs
    for tensor in tensors(chosen):
        if tensor.ndim == 4 and tensor.is_floating_point():
            return tensor.float()
    raise ModelError("a segmenter must return a tensor of images x classes x height x width")


def _at_label_size(outputs: Any, labels: Tensor) -> Tensor:
    """A segmenter's logits, enlarged to the size of the label pictures if they are smaller."""
    logits = class_maps(outputs)
    if logits.shape[2:] == labels.shape[1:]:
        return logits
    return F.interpolate(logits, labels.shape[1:], mode="bilinear", align_corners=False)


def _pixel_cross_entropy(outputs: Any, labels: Tensor, smoothing: float) -> Tensor:
    """Mean cross entropy of the pixels that count."""
    logits = _at_label_size(outputs, labels)
    summed = F.cross_entropy(
        logits, labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
    )
    return summed / (labels != IGNORED).sum().clamp(min=1)


def _segmentation_sums(outputs: Any, labels: Tensor) -> Tensor:
    """Cross entropy, number of images, and how often each class is taken for each."""
    logits = _at_label_size(outputs, labels)
    classes, counts = logits.shape[1], labels != IGNORED
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    loss = loss.cpu().double() if loss.device.type == "mps" else loss.double()
    pairs = labels[counts] * classes + logits.argmax(1)[counts]  # label × classes + prediction
    confusion = torch.bincount(pairs, minlength=classes * classes).to(loss)
    return torch.cat([torch.stack([loss, torch.full_like(loss, len(labels))]), confusion])


def _segmentation_score(sums: list[float]) -> Score:
    """Mean IoU over the classes that occur, and pixel accuracy."""
    loss, images, *counts = sums
    confusion = torch.tensor(counts, dtype=torch.double).view(math.isqrt(len(counts)), -1)
    both, pixels = confusion.diag(), float(confusion.sum())
    union = confusion.sum(0) + confusion.sum(1) - both
    mean_iou = float((both / union)[union > 0].mean()) if pixels else 0.0
    right = float(both.sum()) / max(1.0, pixels)
    figures = {"mean IoU": mean_iou, "pixel accuracy": right}
    return Score(mean_iou, loss / max(1.0, pixels), round(images), figures)


def matching_loss(
    outputs: Any, wanted: Any, temperature: float = 1.0, values: bool = False
) -> Tensor:
    """How far outputs are from those of the network to match.

    For images × classes it is T² · KL(wanted ‖ outputs), softened with temperature T; for any other
    outputs, and where these are `values`, the squared error over the variance of `wanted`, summed
    over all tensors.
    """
    found, given = of_structure(outputs, wanted)
    if not values and is_classification(given):
        divergence = F.kl_div(
            F.log_softmax(found[0] / temperature, 1),
            F.log_softmax(given[0] / temperature, 1),
            reduction="batchmean",
            log_target=True,
        )
        return temperature**2 * divergence
    losses = [
        F.mse_loss(a.float(), b.float()) / b.float().var(correction=0).clamp(min=1e-12)
        for a, b in zip(found, given, strict=True)
        if a.is_floating_point()
    ]
    if not losses:
        raise ModelError("the network returns no numbers that training could bring closer")
    return torch.stack(losses).sum()


def _closeness_score(sums: list[float]) -> Score:
    """Networks are chosen by their divergence; agreement or relative error are shown."""
    found = Closeness(sums)
    name, value = found.figure
    figures = {name: min(value, -WORST)}
    return Score(max(-found.divergence, WORST), found.divergence, found.images, figures)


def _closeness(name: str, values: bool) -> Task:
    """The task of matching another network's outputs."""

    functions = partial(_closeness_loss, values=values), partial(closeness_sums, values=values)
    return Task(name, *functions, _closeness_score, "outputs", values)


def _closeness_loss(outputs: Any, wanted: Any, _smoothing: float, *, values: bool) -> Tensor:
    """How far outputs are from the other network's, without softening."""
    return matching_loss(outputs, wanted, values=values)


TASKS = {
    task.name: task
    for task in (
        Task(
            "classification",
            _cross_entropy,
            _classification_sums,
            _classification_score,
            targets="classes",
        ),
        Task(
            "segmentation",
            _pixel_cross_entropy,
            _segmentation_sums,
            _segmentation_score,
            targets="maps",
        ),
        _closeness("closeness", values=False),
        _closeness("closeness of values", values=True),
    )
}
CLASSIFICATION, SEGMENTATION, CLOSENESS, CLOSENESS_OF_VALUES = TASKS.values()


def task_for(
    loss: BatchFunction | None,
    score: BatchFunction | None,
    usual: Task = CLASSIFICATION,
    outputs: str | None = None,
) -> Task:
    """The task with this loss and score; `usual`, which the data implies, if both are None.

    The default loss is that of `usual`. With a loss alone, the score is the negative loss.
    `outputs` says what images × classes are, one of OUTPUTS; None: class scores.
    """
    if outputs not in (None, *OUTPUTS):
        raise SettingError(f"--outputs must be {' or '.join(OUTPUTS)}, got {outputs}")
    if outputs == "values":
        usual = CLOSENESS_OF_VALUES if usual.needs_reference else replace(usual, values=True)
    if loss is None and score is None:
        return usual
    for name, function in (("loss", loss), ("score", score)):
        if function is not None and not callable(function):
            raise ModelError(
                f"{name} must be a function of outputs and targets, got {type(function).__name__}"
            )
    if loss is not None and usual.needs_reference:
        raise ModelError("--loss needs labels, and these images have none: pass --score alone")

    batch_loss = partial(_own_loss, loss=loss, usual=usual)
    shown_as = "score" if score is None else _qualified_name(score).rpartition(".")[2]
    parts = [usual.name if loss is None else _qualified_name(loss), _qualified_name(score or loss)]
    return Task(
        ", ".join(parts),
        batch_loss,
        partial(_own_sums, loss=batch_loss, score=score),
        partial(_own_score, name=shown_as),
        usual.targets if loss is None else "any",
        usual.values,
    )


def _own_loss(
    outputs: Any, targets: Any, smoothing: float, *, loss: BatchFunction | None, usual: Task
) -> Tensor:
    """The user's loss of a batch, or the usual one."""
    if loss is None:
        return usual.loss(outputs, targets, smoothing)
    return _scalar("loss", loss, outputs, targets)


def _own_sums(
    outputs: Any,
    targets: Any,
    *,
    loss: Callable[[Any, Any, float], Tensor],
    score: BatchFunction | None,
) -> Tensor:
    """The user's score and loss, times the number of images, and this number."""
    mean_loss = loss(outputs, targets, 0.0).detach().float()
    mean_score = -mean_loss if score is None else _scalar("score", score, outputs, targets).detach()
    count = torch.full_like(mean_loss, batch_size(targets))
    return torch.stack([mean_score.to(mean_loss) * count, mean_loss * count, count])


def check_same(task: Task, outputs: Any, targets: Any) -> None:
    """Raise unless a task gives the same numbers for the same outputs twice."""
    first, second = (task.sums(outputs, targets) for _ in range(2))
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        raise ModelError(
            "--score or --loss gives another number for the same outputs and targets each time: "
            "make it deterministic, or results could not be compared"
        )


def _own_score(sums: list[float], *, name: str) -> Score:
    """The user's score under the name of its function."""
    value, loss, images = sums[0] / sums[2], sums[1] / sums[2], round(sums[2])
    if name != "score" and not math.isfinite(value):
        raise ModelError(f"{name} gives {value}: a score must be a finite number")
    return Score(value if math.isfinite(value) else WORST, loss, images, {name: value})


def _scalar(name: str, function: BatchFunction, outputs: Any, targets: Any) -> Tensor:
    """Call a user's function on a batch; raise ModelError unless it returns one number."""
    try:
        value = function(outputs, targets)
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"{name} {_qualified_name(function)} failed: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.reshape(())
    if isinstance(value, int | float):
        return torch.tensor(float(value), device=tensors(targets)[0].device)
    got = (
        f"a tensor of shape {tuple(value.shape)}"
        if isinstance(value, Tensor)
        else type(value).__name__
    )
    raise ModelError(f"{name} must return one number, the mean over the batch, got {got}")


def _qualified_name(function: Any) -> str:
    """`module.function`, which identifies a custom task in journals."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return f"{module}.{name}" if name else type(function).__name__


def in_single_precision(outputs: Any) -> Any:
    """Outputs as float32, whatever structure holds them; whole numbers stay as they are."""
    return map_tensors(outputs, lambda t: t.float() if t.is_floating_point() else t)
