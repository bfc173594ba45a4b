"""Losses and scores of all tasks, in numbers worked out by hand, and label pictures as targets."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import paint, pairs
from PIL import Image
from torch import Tensor, nn

import legr_cli
from legr_cli.data.batches import Serving, in_order, shuffled
from legr_cli.data.dataset import Data, open_data
from legr_cli.errors import DataError, ModelError
from legr_cli.settings import Pictures
from legr_cli.training.loop import evaluate
from legr_cli.training.scores import Score, figures_in, headline, shown
from legr_cli.training.tasks import (
    CLOSENESS,
    SEGMENTATION,
    class_maps,
    matching_loss,
    task_for,
    with_targets,
)

CPU = torch.device("cpu")


def test_mean_iou_by_hand() -> None:
    """Two images of 1×3 pixels: predictions 0 1 1, 2 0 0; labels 0 1 0, 2 ignored 0."""
    logits = torch.zeros(2, 4, 1, 3)
    for image, row in enumerate([[0, 1, 1], [2, 0, 0]]):
        for column, number in enumerate(row):
            logits[image, number, 0, column] = 1.0
    labels = torch.tensor([[[0, 1, 0]], [[2, 255, 0]]])
    batches = [(logits[:1], labels[:1]), (logits[1:], labels[1:])]
    score = evaluate(nn.Identity(), batches, SEGMENTATION)
    # class 0: 2 of 3; class 1: 1 of 2; class 2: 1 of 1; class 3 occurs nowhere
    assert score.value == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert score.figures == {"mean IoU": score.value, "pixel accuracy": pytest.approx(4 / 5)}
    right, wrong = math.log(math.e + 3) - 1, math.log(math.e + 3)
    assert score.loss == pytest.approx((4 * right + wrong) / 5, rel=1e-6)
    assert score.images == 2
    assert Score.from_line(score.line()) == score
    assert float(SEGMENTATION.loss(logits, labels, 0.0)) == pytest.approx(score.loss, rel=1e-6)


def test_images_without_any_label_that_counts() -> None:
    logits, labels = torch.randn(1, 3, 2, 2), torch.full((1, 2, 2), 255)
    assert float(SEGMENTATION.loss(logits, labels, 0.0)) == 0
    assert evaluate(nn.Identity(), [(logits, labels)], SEGMENTATION).value == 0


def test_class_maps() -> None:
    maps = torch.randn(2, 5, 4, 4)
    assert torch.equal(class_maps({"aux": torch.zeros(2, 5, 4, 4), "out": maps}), maps)
    assert torch.equal(class_maps((torch.zeros(2), maps)), maps)
    with pytest.raises(ModelError, match="images x classes x height x width"):
        class_maps(torch.zeros(2, 5))
    labels = torch.zeros(2, 8, 8, dtype=torch.long)
    enlarged = nn.functional.interpolate(maps, (8, 8), mode="bilinear", align_corners=False)
    assert torch.equal(SEGMENTATION.loss(maps, labels, 0.0), SEGMENTATION.loss(enlarged, labels, 0))


def test_matching_loss_by_hand() -> None:
    wanted = torch.tensor([[0.0, 2.0], [4.0, 2.0]])
    found = wanted + torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    p, q = torch.softmax(wanted[1] / 2, 0), torch.softmax(found[1] / 2, 0)
    divergence = float((p * (p / q).log()).sum())
    assert float(matching_loss(found, wanted, 2.0)) == pytest.approx(4 * divergence / 2, rel=1e-5)
    maps = {"steering": wanted[:, :1], "ids": torch.tensor([3, 4]), "map": wanted[None, None]}
    others = {"steering": found[:, :1], "ids": torch.tensor([3, 5]), "map": found[None, None]}
    # error² ÷ variance: (0 + 1) / 2 ÷ 4 for the column 0, 4; (1 + 1) / 4 ÷ 2 for 0, 2, 4, 2
    assert float(matching_loss(others, maps)) == pytest.approx(0.5 / 4 + 0.5 / 2)
    with pytest.raises(ModelError, match="different shapes: 2x1 and 2x2"):
        matching_loss(found[:, :1], wanted)
    with pytest.raises(ModelError, match="no numbers"):
        matching_loss(torch.tensor([1]), torch.tensor([1]))


def test_closeness_is_shown_as_people_understand_it() -> None:
    images = torch.randn(4, 3)
    batches = [(images[:2], None), (images[2:], None)]

    def score(model: nn.Module, dense: nn.Module) -> Score:
        return evaluate(model, with_targets(CLOSENESS, batches, dense), CLOSENESS)

    linear = nn.Linear(3, 5).requires_grad_(False)
    same = score(linear, linear)
    assert (same.value, same.loss, dict(same.figures)) == (0, 0, {"agreement": 1})
    one = nn.Linear(3, 1).requires_grad_(False)
    values = one(images).double()
    error = score(nn.Sequential(one, nn.Flatten(0), nn.Unflatten(0, (-1, 1))), one)
    assert dict(error.figures) == {"relative error": 0}
    twice = nn.Linear(3, 1).requires_grad_(False)
    twice.weight.copy_(2 * one.weight)
    twice.bias.copy_(2 * one.bias)
    relative = float(values.square().sum() / (values - values.mean()).square().sum())
    figures = score(twice, one).figures
    assert figures == {"relative error": pytest.approx(math.sqrt(relative), rel=1e-4)}
    broken = nn.Linear(3, 1).requires_grad_(False)
    broken.bias.fill_(math.nan)
    line = score(broken, one).line()
    assert line["loss"] is None
    assert line["score"] == -1e30
    assert headline(line) == "relative error"


def test_scores_as_text() -> None:
    assert shown({"accuracy": 0.912, "loss": 1}) == "91.20%"
    assert shown({"score": 0.5, "figures": {"mean IoU": 0.5}}) == "50.00%"
    assert shown({"score": -3.0, "figures": {"relative error": 0.1234567}}) == "0.1235"
    assert figures_in({"score": 2.0}) == {"score": 2.0}


def test_scores_of_ones_own() -> None:
    def nearness(outputs: Tensor, targets: Tensor) -> Tensor:
        return -(outputs - targets).abs().mean()

    batches = [(torch.zeros(2, 1), torch.ones(2, 1)), (torch.zeros(1, 1), torch.full((1, 1), 4.0))]
    score = evaluate(nn.Identity(), batches, task_for(nn.functional.mse_loss, nearness))
    assert score.value == pytest.approx(-2)
    assert score.loss == pytest.approx((1 + 1 + 16) / 3)
    assert score.figures == {"nearness": score.value}
    with pytest.raises(ModelError, match="nearness gives nan: a score must be a finite number"):
        evaluate(
            nn.Identity(),
            [(torch.full((1, 1), math.nan), torch.ones(1, 1))],
            task_for(nn.functional.mse_loss, nearness),
        )
    with pytest.raises(ModelError, match="--loss needs labels"):
        task_for(nearness, None, CLOSENESS)
    against = task_for(None, nearness, CLOSENESS)
    found = evaluate(nn.Identity(), with_targets(against, batches, lambda x: x + 2), against)
    assert found.value == pytest.approx(-2)


def test_a_loss_beside_the_outputs() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            out = self.fc(x.flatten(1))
            return out.square().mean(), out

    def nearness(outputs: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> Tensor:
        return -(outputs[1] - wanted[1]).abs().mean()

    images, dense = torch.randn(20, 1, 2, 2), WithLoss()
    found = legr_cli.evaluate(dense, images, against=dense, score=nearness, batch_size=8)
    assert (found.figures, found.images) == ({"nearness": 0.0}, 20)
    tuned = legr_cli.finetune(WithLoss(), images, teacher=dense, epochs=1, batch_size=6)
    assert legr_cli.evaluate(tuned, images, against=dense).images == 20


def test_vectors_instead_of_images() -> None:
    dense = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    vectors = torch.randn(20, 8)
    assert legr_cli.evaluate(dense, vectors, against=dense).figures == {"agreement": 1.0}
    smaller = legr_cli.prune(dense, (8,), flops=0.5)
    tuned = legr_cli.finetune(smaller, vectors, teacher=dense, epochs=1, batch_size=6)
    assert legr_cli.evaluate(tuned, vectors, against=dense).images == 20


def test_outputs_that_change_their_structure() -> None:
    class Moody(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            return [x] * len(x)

    batches = [(torch.randn(2, 1), None), (torch.randn(1, 1), None)]
    with pytest.raises(ModelError, match="change from image to image: use --module"):
        evaluate(Moody(), with_targets(CLOSENESS, batches, Moody()), CLOSENESS)


def colors(batch: Tensor) -> Tensor:
    """The class of each pixel of `pictures.squares`, from its color."""
    return torch.where(batch[:, 0] > 100, 1, torch.where(batch[:, 1] > 100, 2, 0))


def opened(root: Path, size: tuple[int, int], **chosen: object) -> Data:
    statistics = {"mean": [0.0] * 3, "std": [1 / 255] * 3}
    pictures = Pictures(**chosen)
    shape = (3, size[1], size[0])
    return open_data(
        f"pairs:{root}", shape, seed=0, statistics=statistics, pictures=pictures, classes=3
    )


@pytest.mark.parametrize("random_crop", ["none", "padded", "resized"])
@pytest.mark.parametrize(
    ("resize", "size"),
    [("none", (32, 24)), ("crop", (20, 20)), ("squash", (40, 20)), ("pad", (32, 32))],
)
def test_label_pictures_follow_their_images(
    tmp_path: Path, random_crop: str, resize: str, size: tuple[int, int]
) -> None:
    """Resizing blends the edges of images, and never those of labels."""
    root = pairs(tmp_path, {"train": 6, "test": 2})
    data = opened(root, size, resize=resize, random_crop=random_crop, flip=True)
    assert (len(data.train), len(data.validation), len(data.test or ())) == (5, 1, 2)
    serving = Serving(data.feed, 3, CPU, loaders=0)
    generator = torch.Generator().manual_seed(0)
    seen = torch.zeros(4, dtype=torch.long)
    for images, labels in shuffled(data.train, serving, generator):
        assert images.shape == (3, 3, size[1], size[0])
        assert labels.dtype == torch.long
        assert labels.shape == (3, size[1], size[0])
        counts = labels != 255
        same = (colors(images) == labels)[counts].float().mean()
        assert same > (0.999 if resize == "none" and random_crop != "resized" else 0.93)
        blank = (images == 0).all(1)
        assert blank[~counts].all()  # what was padded does not count
        seen += torch.stack([(labels == number).sum() for number in (0, 1, 2, 255)])
    assert (seen[:3] > 0).all()
    assert (seen[3] > 0) == (random_crop == "padded" or (resize, random_crop) == ("pad", "none"))
    [(images, labels)] = in_order(data.validation, serving)
    assert labels.max() <= 2 or resize == "pad"


def test_ignored_classes(tmp_path: Path) -> None:
    root = pairs(tmp_path, {"train": 4})
    shape = (3, 24, 32)
    data = open_data(f"pairs:{root}", shape, seed=0, classes=2, ignore_index=2)
    [(_, labels)] = in_order(data.validation, Serving(data.feed, 4, CPU, loaders=0))
    assert set(labels.unique().tolist()) == {0, 1, 255}
    assert data.card["ignore_index"] == 2


def broken(root: Path, change: str) -> None:
    images, labels = root / "train/001.png", root / "train-labels/001.png"
    if change == "missing":
        labels.unlink()
    elif change == "no labels at all":
        labels.parent.rename(root / "elsewhere")
    elif change == "no image":
        for path in images.parent.iterdir():
            path.unlink()
    elif change == "size":
        Image.fromarray(np.zeros((5, 5), np.uint8)).save(labels)
    elif change == "color":
        paint(labels, (32, 24))
    elif change == "class":
        Image.fromarray(np.full((24, 32), 9, np.uint8)).save(labels)
    else:
        labels.write_bytes(b"no picture")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", r"train/001.png has no label picture: expected .*train-labels/001.png"),
        ("no labels at all", r"train-labels is missing: it must hold a label picture for each"),
        ("no image", r"train has no images"),
        ("size", r"train-labels/001.png is 5x5, but its image is 32x24"),
        ("color", r"train-labels/001.png is a picture of mode RGB: a label picture has one class"),
        (
            "class",
            r"train-labels/001.png has class 9, but the network has 3 classes: pass --ignore",
        ),
        ("garbage", r"train-labels/001.png is not a readable image"),
    ],
)
def test_bad_label_pictures(tmp_path: Path, change: str, message: str) -> None:
    root = pairs(tmp_path, {"train": 4})
    broken(root, change)

    def read() -> None:
        data = opened(root, (32, 24))
        for part in (data.train, data.validation):
            list(in_order(part, Serving(data.feed, 4, CPU, loaders=0)))

    with pytest.raises(DataError, match=message):
        read()
