"""How pictures become inputs: as documented, as stored, and as one's own code would do it."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from nets import conv, head
from pictures import folders, paint
from PIL import Image, ImageOps
from running import fails, legr, runner
from torch import nn
from torch.nn import functional as F
from torchvision.transforms import v2

import legr_cli
from legr_cli.cli import app
from legr_cli.data.batches import Serving, in_order, shuffled
from legr_cli.data.class_order import in_network_order
from legr_cli.data.dataset import described, open_data
from legr_cli.data.pixels import Fitting, as_array
from legr_cli.errors import DataError, SettingError
from legr_cli.models.card import Card, attach_card, card_of
from legr_cli.models.registry import Arch
from legr_cli.settings import Pictures
from legr_cli.training.memory_format import in_memory_format

CPU = torch.device("cpu")
BILINEAR = Image.Resampling.BILINEAR
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def scenes(root: Path, size: tuple[int, int] = (320, 240), per_class: int = 6) -> Path:
    """Three classes of smooth pictures: a bright spot on the left, in the middle, on the right."""
    rng = np.random.default_rng(0)
    for part, count in (("train", per_class), ("test", 5)):
        for label, name in enumerate(("left", "middle", "right")):
            for row in range(count):
                values = rng.integers(0, 140, (12, 16, 3))
                values[2:10, 5 * label + 1 : 5 * label + 5] += rng.integers(20, 90)
                path = root / part / name / f"{row}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                image = Image.fromarray(values.astype(np.uint8))
                image.resize(size, Image.Resampling.BICUBIC).save(path)
    return root


def small(num_classes: int = 3) -> nn.Module:
    """conv13 /4 - bn - relu - conv23 /2 - relu - flatten a 2 × 3 grid - fc"""
    return nn.Sequential(
        *(nn.Conv2d(3, 13, 5, 4), nn.BatchNorm2d(13), nn.ReLU(), nn.Conv2d(13, 23, 3, 2)),
        *(nn.ReLU(), nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Linear(138, num_classes)),
    )


def own_code(width: int, height: int) -> dict:
    """By options, what the documentation says does the same."""
    return {
        ("crop", None): lambda image: ImageOps.fit(image, (width, height), BILINEAR),
        ("crop", 0.875): v2.Compose(
            [v2.Resize(round(min(width, height) / 0.875)), v2.CenterCrop((height, width))]
        ),
        ("squash", None): v2.Resize((height, width)),
        ("pad", None): lambda image: ImageOps.pad(image, (width, height), BILINEAR),
        ("none", None): lambda image: image,
    }


def own_loop(model: nn.Module, root: Path, prepare) -> tuple[float, float]:
    """Accuracy and loss of a network on the test pictures, as a user would measure them."""
    steps = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    right, loss, count = 0, 0.0, 0
    for label, folder in enumerate(sorted((root / "test").iterdir())):
        for path in sorted(folder.iterdir()):
            with Image.open(path) as image:
                pixels = v2.functional.normalize(steps(prepare(image.convert("RGB"))), MEAN, STD)
            with torch.no_grad():
                logits = model.eval()(pixels[None])
            right += int(logits.argmax()) == label
            loss += float(F.cross_entropy(logits, torch.tensor([label])))
            count += 1
    return right / count, loss / count


@pytest.fixture(scope="module", params=[(64, 64), (112, 112), (64, 48), (160, 120)])
def tuned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[nn.Module, tuple[int, int], Path]:
    """A network trained at an input size; that size, and the pictures."""
    side, root = request.param, tmp_path_factory.mktemp("scenes")
    scenes(root)
    torch.manual_seed(0)
    shape = (3, side[1], side[0])
    options = {"epochs": 2, "lr": 0.02, "batch_size": 6, "input_shape": shape}
    return legr_cli.finetune(small(), f"folder:{root}", **options), side, root


@pytest.mark.parametrize(("resize", "crop"), list(own_code(1, 1))[:-1])
def test_accuracy_is_that_of_ones_own_loop(
    tuned: tuple[nn.Module, tuple[int, int], Path], resize: str, crop: float | None
) -> None:
    model, side, root = tuned
    found = legr_cli.evaluate(model, f"folder:{root}", resize=resize, crop=crop)
    accuracy, loss = own_loop(model, root, own_code(*side)[resize, crop])
    assert found.accuracy == accuracy
    assert found.loss == pytest.approx(loss, rel=1e-4)


def test_a_central_crop_always_covers_the_input() -> None:
    wide = Fitting((200, 50), "crop", 0.875)
    for size in ((320, 240), (240, 320), (30, 500), (500, 30), (7, 7)):
        image = Image.new("L", size, 255)
        assert np.array_equal(as_array(wide(image, "it")), np.full((1, 50, 200), 255))


def test_pictures_of_the_input_size_are_used_as_they_are(tmp_path: Path) -> None:
    scenes(tmp_path)
    model, spec = small(), f"folder:{tmp_path}"
    for resize in (None, "crop", "squash", "pad", "none"):
        found = legr_cli.evaluate(model, spec, resize=resize, input_shape=(3, 240, 320))
        expected = own_loop(model, tmp_path, lambda image: image)
        assert (found.accuracy, found.loss) == pytest.approx(expected, rel=1e-4)
        assert "images 320x240, used as they are" in found.notes
    (tmp_path / "test").rename(tmp_path / "val")
    data = open_data(f"imagenet:{tmp_path}", (3, 240, 320), seed=0)
    assert data.feed.crop == 1  # so small a set of prepared pictures is no ImageNet
    assert open_data(f"imagenet:{tmp_path}", (3, 224, 224), seed=0).feed.crop == 0.875


def test_without_resizing_another_size_names_the_file(tmp_path: Path) -> None:
    scenes(tmp_path)
    for shape in ("3x64x64", "3x128x128"):
        args = ("--arch", "digits_net:build", "--classes", 3, "--input", shape)
        args = ("evaluate", "random:digits_net:build", *args[2:], "--data", f"folder:{tmp_path}")
        said = fails(*args, "--resize", "none")
        assert ".png is 320x240, but the input is " + shape[2:] in said
        assert "--resize crop, squash or pad" in said


def inputs(spec: str, shape: tuple[int, ...], **choices) -> list[torch.Tensor]:
    """Training images as a network sees them, in order and varied."""
    data = open_data(spec, shape, seed=0, pictures=Pictures(**choices), statistics=NONE)
    serving = Serving(data.feed, 9, CPU, loaders=0)
    draw = torch.Generator().manual_seed(5)
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(5))
    still = torch.cat([images for images, _ in in_order(data.train, serving)])[order]
    varied = torch.cat([images for images, _ in shuffled(data.train, serving, draw)])
    return [still[: len(varied)], varied]


NONE = {"mean": [0.0], "std": [1.0]}


@pytest.mark.parametrize("side", [32, 112])
def test_a_folder_varies_nothing_unless_asked(tmp_path: Path, side: int) -> None:
    folders(tmp_path, size=(side, side))
    spec, shape = f"folder:{tmp_path}", (3, side, side)
    still, varied = inputs(spec, shape)
    assert torch.equal(still, varied)
    still, mirrored = inputs(spec, shape, flip=True)
    each = [torch.equal(a, b) for a, b in zip(still, mirrored, strict=True)]
    turned = [torch.equal(a, b.flip(2)) for a, b in zip(still, mirrored, strict=True)]
    assert all(a != b for a, b in zip(each, turned, strict=True))
    assert 4 < sum(turned) < len(turned) - 4
    still, shifted = inputs(spec, shape, random_crop="padded")
    middle = slice(side // 2, side // 2 + 4)
    for a, b in zip(still, shifted, strict=True):
        patch = b[:, middle, middle]
        windows = a.unfold(1, 4, 1).unfold(2, 4, 1)
        assert (windows == patch[:, None, None]).all(-1).all(-1).all(0).sum() == 1
    still, zoomed = inputs(spec, shape, random_crop="resized")
    assert zoomed.shape == still.shape
    assert not any(torch.equal(a, b) for a, b in zip(still, zoomed, strict=True))


def test_choices_are_stored_and_used_again(tmp_path: Path) -> None:
    scenes(tmp_path / "set")
    torch.save(small().state_dict(), tmp_path / "net.pth")
    data = ("--data", f"folder:{tmp_path / 'set'}")
    net = ("--arch", "test_pictures:small", "--input", "3x60x80")
    chosen = ("--resize", "pad", "--flip")
    tuned, ranking = tmp_path / "tuned.safetensors", tmp_path / "r.json"
    train = ("--epochs", 1, "--batch-size", 6)
    result = runner.invoke(
        app,
        list(
            map(
                str,
                ("finetune", tmp_path / "net.pth", *net, *data, *chosen, *train, "--out", tuned),
            )
        ),
    )
    assert result.exit_code == 0, result.output
    said = " ".join(result.stderr.split())
    assert "images 320x240, resized to 80x60 (pad)" in said
    assert "training images: no random crops, mirroring" in said
    expected = {"resize": "pad", "random_crop": "none", "flip": True}
    notes = card_of(legr_cli.load(tuned, arch=net[1])).notes
    assert notes["pictures"] == expected
    assert notes["class_names"] == ["left", "middle", "right"]
    search = ("--fitness", "none", "--flops", 0.6, "--candidates", 2, "--population", 2)
    search = (*search, "--sample", 1, "--align", 1)
    legr("learn", tuned, *net[:2], *data, *search, "--out", ranking)
    assert json.loads(ranking.read_text())["pictures"] == expected
    cut = tmp_path / "cut.safetensors"
    bare = ("prune", tmp_path / "net.pth", *net, "--flops", 0.6, "--align", 1)
    legr(*bare, "--ranking", ranking, "--out", cut)
    notes = card_of(legr_cli.load(cut, arch=net[1])).notes
    assert notes["pictures"] == expected
    assert notes["class_names"] == ["left", "middle", "right"]
    legr("export", cut, *net[:2], "--out", tmp_path / "cut.onnx")
    metadata = {p.key: p.value for p in onnx.load(tmp_path / "cut.onnx").metadata_props}
    assert json.loads(metadata["legr"])["pictures"] == expected
    found = json.loads(legr("evaluate", cut, *net[:2], *data, "--json"))
    assert "images 320x240, resized to 80x60 (pad)" in found["notes"]
    again = json.loads(legr("evaluate", cut, *net[:2], *data, "--crop", 0.9, "--json"))
    assert "images 320x240, resized to 80x60 (crop 0.9)" in again["notes"]
    assert "the aspect" not in found["notes"]
    more = (*train[:1], 2, *train[2:], "--out", tmp_path / "more.safetensors")
    legr("finetune", cut, *net[:2], *data, *more)
    journal = (tmp_path / "more.epochs.jsonl").read_text().splitlines()
    assert json.loads(journal[0])["pictures"] == expected
    (tmp_path / "more.safetensors").unlink()
    (tmp_path / "more.epochs.jsonl").write_text(journal[0] + "\n")
    said = fails("finetune", cut, *net[:2], *data, *more, "--resume", "--no-flip")
    assert "--flip was True, is now False" in said


def test_journals_of_known_datasets_stay_as_they_were(tmp_path: Path) -> None:
    """What legr did before it recorded its choices needs no record."""
    assert open_data("digits", (3, 32, 32), seed=0).as_before
    folders(tmp_path)
    for kind, expected in (("cifar10", True), ("cub200", True), ("folder", False)):
        assert open_data(f"{kind}:{tmp_path}", (3, 32, 32), seed=0).as_before is expected
    old = Pictures(random_crop="padded", flip=True)  # what earlier versions did with folders
    assert open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0, pictures=old).as_before
    old = Pictures(crop=0.875, random_crop="resized", flip=True)
    assert open_data(f"folder:{tmp_path}", (3, 112, 112), seed=0, pictures=old).as_before
    assert not open_data("digits", (3, 32, 32), seed=0, pictures=Pictures(flip=True)).as_before


def test_sizes_that_differ_are_said(tmp_path: Path) -> None:
    folders(tmp_path, size=(40, 30))
    paint(tmp_path / "train" / "dog" / "003.png", (30, 40))
    data = open_data(f"folder:{tmp_path}", (3, 24, 32), seed=0)
    assert described(data) == ["images of several sizes, such as 40x30, resized to 32x24 (crop)"]


@pytest.mark.parametrize("resize", ["crop", "squash", "pad"])
def test_arrays_are_resized_as_files_are(tmp_path: Path, resize: str) -> None:
    """Digits in files and as arrays; what is scaled whole is not rounded to bytes in between."""
    data = open_data("digits", (3, 32, 32), seed=0)
    for label in (0, 1):
        rows = np.flatnonzero(data.test.labels == label)[:3]
        for name, row in [*zip("abc", rows, strict=True)]:
            path = tmp_path / "train" / str(label) / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = data.test.pixels.array[data.test.index[row]]
            Image.fromarray(pixels.transpose(1, 2, 0)).save(path)
    choice = {"pictures": Pictures(resize=resize), "statistics": NONE}
    files = open_data(f"folder:{tmp_path}", (3, 24, 40), seed=0, hold_out=False, **choice)
    arrays = open_data("digits", (3, 24, 40), seed=0, **choice)
    rows = [np.flatnonzero(arrays.test.labels == label)[:3] for label in (0, 1)]
    [(one, _)] = in_order(files.train, Serving(files.feed, 6, CPU))
    [(two, _)] = in_order(arrays.test.pick(np.concatenate(rows)), Serving(arrays.feed, 6, CPU))
    assert (one - two).abs().max() < 1.01 / 255


BAD = {
    "resize": (("--resize", "stretch"), "--resize must be crop or squash or pad or none"),
    "crop": (("--crop", "1.5"), "--crop must be at most 1"),
    "crop with": (("--resize", "pad", "--crop", "0.9"), "--crop is for --resize crop"),
    "random crop": (("--random-crop", "yes"), "--random-crop must be none or padded or resized"),
    "arrays": (("--random-crop", "resized"), "--random-crop resized needs image files"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_one_line(name: str, weights: Path, tmp_path: Path) -> None:
    options, message = BAD[name]
    args = ("finetune", weights, "--arch", "digits_net:build", "--input", "3x32x32")
    said = fails(*args, "--data", "digits", *options, "--out", tmp_path / "t.safetensors")
    assert message in said
    assert not list(tmp_path.iterdir())


def test_a_recorded_crop_that_arrays_do_not_allow() -> None:
    note = {"resize": "crop", "crop": 0.875, "random_crop": "resized", "flip": True}
    feed = open_data("digits", (3, 32, 32), seed=0, recorded_pictures=note).feed
    assert (feed.random_crop, feed.flip, feed.crop) == ("padded", True, 0.875)


def test_bad_arguments() -> None:
    images = torch.rand(4, 3, 32, 32), torch.arange(4) % 3
    for given in ({"resize": "pad"}, {"crop": 0.9}, {"ignore_class_names": True}):
        with pytest.raises(SettingError, match="need a SPEC"):
            legr_cli.evaluate(small(), images, **given)
    for given in ({"flip": "yes"}, {"crop": "half"}, {"crop": float("nan")}, {"crop": True}):
        with pytest.raises(SettingError):
            Pictures(**given)
    for note in ("crop", ["crop"], {"resize": "bend"}, {"tilt": 3}, {"crop": -1}):
        with pytest.raises(DataError, match="notes on preprocessing"):
            open_data("digits", (3, 32, 32), seed=0, recorded_pictures=note)


def named(names: list[str], shape: tuple[int, ...] = (3, 32, 32)) -> nn.Module:
    """A network that says what its classes are called."""
    torch.manual_seed(1)
    model = nn.Sequential(conv(3, 13), nn.ReLU(), head(13))
    model[-1][-1] = nn.Linear(13, len(names))
    model[-1][-1].weight.data *= 20  # so that classes differ
    notes = {"class_names": names}
    return attach_card(model.eval(), Card(Arch("test_pictures:named"), shape, None, notes))


def test_classes_are_matched_by_name(tmp_path: Path) -> None:
    spec = f"folder:{folders(tmp_path)}"
    straight = named(["cat", "dog", "eel"])
    turned = named(["eel", "cat", "dog"])
    order = torch.tensor([2, 0, 1])  # where the outputs of `turned` are among those of `straight`
    last, first = turned[-1][-1], straight[-1][-1]
    last.weight.data, last.bias.data = first.weight.data[order], first.bias.data[order]
    one, two = legr_cli.evaluate(straight, spec), legr_cli.evaluate(turned, spec)
    assert (one.accuracy, one.loss) == pytest.approx((two.accuracy, two.loss), rel=1e-5)
    assert any("labels are matched by name" in note for note in two.notes)
    assert not any("matched by name" in note for note in one.notes)
    ignored = legr_cli.evaluate(turned, spec, ignore_class_names=True)
    assert ignored.loss != pytest.approx(one.loss, rel=1e-3)
    tuned = legr_cli.finetune(turned, spec, epochs=1, lr=1e-9, batch_size=9)
    assert card_of(tuned).notes["class_names"] == ["eel", "cat", "dog"]
    assert legr_cli.evaluate(tuned, spec).accuracy == one.accuracy


def test_renamed_and_missing_classes(tmp_path: Path) -> None:
    spec, model = f"folder:{folders(tmp_path)}", named(["cat", "dog", "eel"])
    whole = legr_cli.evaluate(model, spec)
    for part in ("train", "test"):
        (tmp_path / part / "cat").rename(tmp_path / part / "zebra")
    text = "has class 'zebra', which the network does not know, and lacks class 'cat'"
    for function in (legr_cli.evaluate, legr_cli.finetune, legr_cli.learn):
        with pytest.raises(DataError, match=f"{text}.*--ignore-class-names"):
            function(model, spec)
    with pytest.raises(DataError, match=text):
        legr_cli.compare(model, spec, tmp_path / "versus")
    assert legr_cli.evaluate(model, spec, ignore_class_names=True).images == whole.images
    for part in ("train", "test"):
        for path in (tmp_path / part / "zebra").iterdir():
            path.unlink()
        (tmp_path / part / "zebra").rmdir()
    some = legr_cli.evaluate(model, spec)
    assert (some.images, some.classes) == (4, 3)
    assert "the data has 2 of the network's 3 classes" in some.notes
    with pytest.raises(DataError, match="lacks class 'cat', which the network expects"):
        legr_cli.finetune(model, spec)


def test_names_that_cannot_be_compared(tmp_path: Path) -> None:
    """ImageNet's folders are WordNet ids, torchvision's names are words; stale names are none."""
    for label, name in enumerate(("n01440764", "n01443537")):
        for row in range(4):
            paint(tmp_path / "train" / name / f"{row}.png", seed=9 * label + row)
    spec = f"folder:{tmp_path}"
    data = open_data(spec, (3, 32, 32), seed=0)
    assert in_network_order(data, ["tench", "goldfish"]) is data
    assert legr_cli.evaluate(named(["tench", "goldfish"]), spec, split="val").images == 2
    stale = named(["tench", "goldfish"])
    stale[-1][-1] = nn.Linear(13, 2)
    card_of(stale).notes["class_names"] = ["a", "b", "c"]
    assert legr_cli.evaluate(stale, spec, split="val").images == 2


def test_a_teacher_with_other_classes(tmp_path: Path) -> None:
    spec = f"folder:{folders(tmp_path)}"
    student, teacher = named(["cat", "dog", "eel"]), named(["eel", "cat", "dog"])
    with pytest.raises(DataError, match="its classes, or their order, differ"):
        legr_cli.finetune(student, spec, teacher=teacher, epochs=1)


class LeNet(nn.Module):
    """The tutorial's network, which flattens with `view`."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(16 * 25, 84), nn.Linear(84, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.view(x.size(0), -1))))


def test_a_network_that_needs_contiguous_tensors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, data = LeNet(), open_data("digits", (3, 32, 32), seed=0)
    assert not in_memory_format(model, data).feed.channels_last
    assert in_memory_format(small(10), data).feed.channels_last
    found = legr_cli.evaluate(model, "digits", input_shape=(3, 32, 32))
    images = torch.cat([x for x, _ in in_order(data.test, Serving(data.feed, 60, CPU))])
    with torch.no_grad():
        right = model(images.contiguous()).argmax(1) == torch.from_numpy(data.test.labels)
    assert found.accuracy == right.double().mean().item()
    torch.save(model.state_dict(), tmp_path / "lenet.pth")
    net = (tmp_path / "lenet.pth", "--arch", "test_pictures:LeNet", "--input", "3x32x32")
    out, tuned = ("--data", "digits", "--out"), tmp_path / "t.safetensors"
    teach = ("--teacher", net[0], "--teacher-arch", net[2])
    legr("finetune", *net, "--epochs", 1, *out, tuned)
    legr("finetune", tuned, *net[1:3], "--epochs", 1, *teach, *out, tmp_path / "u.safetensors")
    search = ("--flops", 0.5, "--steps", 2, "--candidates", 2, "--population", 2, "--sample", 1)
    legr("learn", *net, *search, "--align", 1, *out, tmp_path / "r.json")
    versus = ("--flops", 0.5, "--methods", "uniform", "--epochs", 1, "--align", 1)
    legr("compare", *net, *versus, *out, tmp_path / "versus")


def test_a_dense_checkpoint_is_measured_at_the_size_of_its_peers(tmp_path: Path) -> None:
    scenes(tmp_path / "set")
    torch.manual_seed(0)
    model = small()
    torch.save(model.state_dict(), tmp_path / "dense.pth")
    smaller = legr_cli.prune(model, (3, 48, 64), flops=0.6, arch="test_pictures:small")
    legr_cli.save(smaller, tmp_path / "small.safetensors")
    args = ("--arch", "test_pictures:small", "--data", f"folder:{tmp_path / 'set'}", "--json")
    files = (tmp_path / "dense.pth", tmp_path / "small.safetensors")
    found = json.loads(legr("evaluate", *files, *args))
    assert [row["file"] for row in found["scores"]] == list(map(str, files))
    assert sum("resized to 64x48" in note for note in found["notes"]) == 1
    assert not any("224x224" in note for note in found["notes"])
    alone = json.loads(legr("evaluate", files[0], *args, "--input", "3x48x64"))["scores"][0]
    assert found["scores"][0] == alone
    assert found["scores"][1]["flops_share"] == pytest.approx(
        found["scores"][1]["flops"] / alone["flops"]
    )
