"""Data sets in all their layouts, the split, and what reaches the network."""

import hashlib
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from pictures import folders, paint
from PIL import Image

from legr_cli.data import pixels
from legr_cli.data.batches import Serving, crop_and_flip, endless, in_order, shuffled
from legr_cli.data.dataset import Data, open_data, parse_statistics, split_off
from legr_cli.errors import DataError, SettingError

CPU = torch.device("cpu")
NONE = parse_statistics("none")


def all_images(data: Data, part: str, size: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    batches = list(in_order(getattr(data, part), Serving(data.feed, size, CPU)))
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def test_digits() -> None:
    data = open_data("digits", (3, 32, 32), seed=0)
    assert data.classes == tuple("0123456789")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [1295, 142, 360]
    assert data.test.labels[:10].tolist() == [2, 3, 4, 5, 6, 7, 8, 9, 0, 9]
    images, _ = all_images(data, "train")
    assert images.shape == (1295, 3, 32, 32)
    assert images.mean().abs() < 0.05
    assert abs(images.std() - 1) < 0.05
    assert torch.equal(
        images[:, 0, ::4, ::4], images[:, 1, 3::4, 3::4]
    )  # 8 × 8, four times as large


def test_a_folder(tmp_path: Path) -> None:
    folders(tmp_path)
    data = open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0, statistics=NONE)
    assert data.classes == ("cat", "dog", "eel")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [27, 3, 6]
    assert sorted(data.validation.labels) == [0, 1, 2]
    images, labels = all_images(data, "test")
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    with Image.open(tmp_path / "test" / "dog" / "001.png") as image:
        wanted = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    assert torch.allclose(images[3], wanted, atol=1e-6)


def test_own_validation_images_are_used(tmp_path: Path) -> None:
    folders(tmp_path)
    (tmp_path / "test").rename(tmp_path / "val")
    data = open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0)
    assert len(data.train) == 30
    assert len(data.validation) == 6
    assert data.test is None
    assert open_data(f"imagenet:{tmp_path}", (3, 32, 32), seed=0).test is not None
    with pytest.raises(DataError, match="has its own validation images"):
        open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0, hold_out=False)


def test_none_are_held_out_where_that_is_asked(tmp_path: Path) -> None:
    folders(tmp_path)
    some = open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0)
    every = open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0, hold_out=False)
    assert [len(part) for part in (every.train, every.validation, every.test)] == [30, 3, 6]
    assert every.validation.index.tolist() == some.validation.index.tolist()
    assert some.card != every.card


def test_other_sizes_and_grey(tmp_path: Path) -> None:
    folders(tmp_path, size=(50, 41))
    data = open_data(f"folder:{tmp_path}", (1, 24, 24), seed=0)
    images, _ = all_images(data, "train")
    assert images.shape == (27, 1, 24, 24)
    assert len(data.feed.mean) == 1
    assert all_images(open_data("digits", (1, 12, 12), seed=0), "test")[0].shape == (360, 1, 12, 12)


def test_large_images_are_read_as_they_are_needed(tmp_path: Path) -> None:
    folders(tmp_path, size=(140, 120))
    data = open_data(f"folder:{tmp_path}", (3, 105, 105), seed=0, statistics=NONE)
    assert data.train.pixels is None
    images, labels = all_images(data, "test")
    assert images.shape == (6, 3, 105, 105)
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    resize = torchvision.transforms.v2.Resize(120)
    with Image.open(tmp_path / "test" / "dog" / "001.png") as image:
        whole = np.asarray(resize(image).convert("RGB"))
    middle = torch.from_numpy(whole[8:113, 18:123].copy()).permute(2, 0, 1) / 255
    assert torch.allclose(images[3], middle, atol=1e-6)
    one, two = (
        torch.cat([x for x, _ in shuffled(data.train, Serving(data.feed, 9, CPU), g)])
        for g in (torch.Generator().manual_seed(3), torch.Generator().manual_seed(3))
    )
    assert torch.equal(one, two)
    (tmp_path / "test" / "dog" / "001.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"001\.png is not a readable image"):
        all_images(data, "test")


def test_torchvisions_own_cifar_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = torchvision.datasets.CIFAR10
    folder = tmp_path / made.base_folder
    folder.mkdir()
    rng = np.random.default_rng(0)

    def write(name: str, content: dict) -> tuple[str, str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return name, hashlib.md5((folder / name).read_bytes()).hexdigest()

    def batch() -> dict:
        labels = list(range(10)) * 2
        return {"data": rng.integers(256, size=(20, 3072), dtype=np.uint8), "labels": labels}

    lists = {
        "train_list": [write(name, batch()) for name, _ in made.train_list],
        "test_list": [write(name, batch()) for name, _ in made.test_list],
    }
    name, md5 = write("batches.meta", {"label_names": list("abcdefghij")})
    for key, value in lists.items():
        monkeypatch.setattr(made, key, [list(pair) for pair in value])
    monkeypatch.setattr(made, "meta", {"filename": name, "key": "label_names", "md5": md5})
    data = open_data(f"cifar10:{tmp_path}", (3, 32, 32), seed=0)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [90, 10, 20]
    assert data.classes == tuple("abcdefghij")
    (folder / "data_batch_1").write_bytes(b"cposix\nsystem\n.")  # its checksum is wrong: not opened
    with pytest.raises(DataError, match="damaged"):
        open_data(f"cifar10:{tmp_path}", (3, 32, 32), seed=0)


def test_cub200_as_it_was_packed(tmp_path: Path) -> None:
    names = [f"{c:03}.Bird_{c}/img_{i}.jpg" for c in (1, 2, 3) for i in range(6)]
    for i, name in enumerate(names):
        paint(tmp_path / "images" / name, seed=i)
    lines = {
        "images.txt": [f"{i} {name}" for i, name in enumerate(names, 1)],
        "image_class_labels.txt": [f"{i} {(i - 1) // 6 + 1}" for i in range(1, 19)],
        "train_test_split.txt": [f"{i} {int(i % 3 > 0)}" for i in range(1, 19)],
        "classes.txt": [f"{c} {c:03}.Bird_{c}" for c in (1, 2, 3)],
    }
    for name, rows in lines.items():
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    data = open_data(f"cub200:{tmp_path}", (3, 32, 32), seed=0)
    assert data.classes == ("001.Bird_1", "002.Bird_2", "003.Bird_3")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [9, 3, 6]
    assert data.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    (tmp_path / "images" / names[0]).unlink()
    with pytest.raises(DataError, match=r"img_0\.jpg is missing"):
        open_data(f"cub200:{tmp_path}", (3, 32, 32), seed=0)


def test_split_is_seeded_fair_and_complete() -> None:
    labels = np.repeat(np.arange(7), [100, 50, 31, 10, 3, 2, 1])
    stays, held = split_off(labels, 0.1, seed=5)
    assert np.bincount(labels[held], minlength=7).tolist() == [10, 5, 3, 1, 1, 1, 0]
    assert sorted([*stays, *held]) == list(range(len(labels)))
    assert np.array_equal(held, split_off(labels, 0.1, seed=5)[1])
    assert not np.array_equal(held, split_off(labels, 0.1, seed=6)[1])


def test_validation_images_are_never_trained_on() -> None:
    data = open_data("digits", (3, 32, 32), seed=0)
    assert not set(data.train.index) & set(data.validation.index)
    generator = torch.Generator().manual_seed(0)
    batches = endless(
        lambda: shuffled(data.train, Serving(data.feed, 100, CPU), generator, augment=False)
    )
    seen = {x.numpy().tobytes() for _ in range(26) for x in next(batches)[0]}
    held = {x.numpy().tobytes() for x in all_images(data, "validation")[0]}
    assert len(seen) > 1200
    assert not seen & held


def test_shuffles_differ_and_repeat_with_the_seed() -> None:
    data = open_data("digits", (3, 32, 32), seed=0)

    def labels(seed: int, epochs: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        batches = endless(lambda: shuffled(data.train, Serving(data.feed, 128, CPU), generator))
        return [int(y) for _ in range(10 * epochs) for y in next(batches)[1]]

    two = labels(0, 2)
    assert two == labels(0, 2)
    assert two[:1280] != two[1280:]
    assert two[:1280] != labels(1, 1)


def test_crop_and_flip() -> None:
    images = torch.arange(1, 1 + 64 * 3 * 32 * 32).view(64, 3, 32, 32) % 251
    images = images.to(torch.uint8)
    draw = torch.Generator().manual_seed(0)
    moves = torch.randint(9, (64, 2), generator=draw)
    mirrored = torch.rand(64, generator=draw) < 0.5
    moved = crop_and_flip(images, 4, moves, mirrored)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    ways: list = []
    for before, after in zip(padded, moved, strict=True):
        found = [
            (y, x, mirror)
            for y in range(9)
            for x in range(9)
            for mirror in (False, True)
            if torch.equal(after.flip(2) if mirror else after, before[:, y : y + 32, x : x + 32])
        ]
        assert found == [(*moves[len(ways)].tolist(), bool(mirrored[len(ways)]))]
        ways.append(found[0])
    assert len(ways) > 40
    assert {mirror for _, _, mirror in ways} == {False, True}
    still = crop_and_flip(images, 4, moves, None)
    assert not torch.equal(still, moved)


def test_decoded_images_are_kept_shared_and_renewed(tmp_path: Path) -> None:
    folders(tmp_path)
    first = open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0)
    again = open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0)
    assert first.train.pixels.path == again.train.pixels.path
    assert len(pickle.dumps(first.train.pixels)) < 500  # the file's name, not the images
    assert np.array_equal(
        pickle.loads(pickle.dumps(first.train)).pixels.array, first.train.pixels.array
    )
    carried = pickle.loads(pickle.dumps(first.validation.self_contained()))
    assert carried.pixels.array.shape == (3, 3, 32, 32)
    assert first.card == again.card
    paint(tmp_path / "train" / "cat" / "000.png", seed=77)
    other = open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0)
    assert other.train.pixels.path != first.train.pixels.path


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LEGR_CACHE", str(tmp_path / "file" / "below"))
    pixels._writable_folder.cache_clear()
    folders(tmp_path / "set")
    assert len(open_data(f"folder:{tmp_path / 'set'}", (3, 32, 32), seed=0).train) == 27
    pixels._writable_folder.cache_clear()


def broken(root: Path) -> None:
    (folders(root) / "train" / "dog" / "003.png").write_bytes(b"\x89PNG but no more")


def one_class(root: Path) -> None:
    for i in range(3):
        paint(root / "train" / "cat" / f"{i}.png")


def no_images(root: Path) -> None:
    for name in ("cat", "dog"):
        (root / "train" / name).mkdir(parents=True)


def strange_class(root: Path) -> None:
    paint(folders(root) / "test" / "fox" / "0.png")


@pytest.mark.parametrize(
    ("spec", "make", "message"),
    [
        ("folder:{}", lambda root: root.rmdir(), "is not a folder; expected .* train/CLASS"),
        ("cifar10:{}", lambda root: root.rmdir(), "get it from https://www.cs.toronto.edu"),
        ("folder:{}", lambda root: None, "to contain train/CLASS"),
        ("folder:{}", lambda root: (root / "train").mkdir(), "is empty"),
        ("folder:{}", no_images, "cat has no images"),
        ("folder:{}", one_class, "has only one class"),
        ("folder:{}", broken, r"dog/003\.png is not a readable image"),
        ("folder:{}", strange_class, "a class 'fox' that is not in the training folder"),
        ("cub200:{}", lambda root: (root / "images.txt").write_text("1 a"), "not a complete CUB"),
        (
            "mnist:{}",
            lambda root: None,
            "unknown dataset 'mnist'; expected one of digits, cifar10:DIR",
        ),
        ("digits:{}", lambda root: None, "omit the folder"),
        ("cifar10", lambda root: None, "expected cifar10:DIR"),
    ],
)
def test_bad_sets(spec: str, make, message: str, tmp_path: Path) -> None:
    root = tmp_path / "set"
    root.mkdir()
    make(root)
    with pytest.raises(DataError, match=message):
        open_data(spec.format(root), (3, 32, 32), seed=0)


def test_download_where_nothing_can_be_fetched(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--download does not support imagenet"):
        open_data(f"imagenet:{tmp_path}", (3, 32, 32), seed=0, download=True)


def test_statistics() -> None:
    assert parse_statistics("imagenet")["mean"] == [0.485, 0.456, 0.406]
    assert parse_statistics("0.5:0.25") == {"mean": [0.5], "std": [0.25]}
    for text in ("nope", "0.5,0.5:0.1,0.1", "0.5:0", "nan:1", "1,1,1:1", "0.5:inf"):
        with pytest.raises(SettingError, match="--normalize"):
            parse_statistics(text)


def test_a_link_to_itself_is_not_walked_twice(tmp_path: Path) -> None:
    folders(tmp_path)
    (tmp_path / "train" / "cat" / "loop").symlink_to(tmp_path / "train" / "cat")
    data = open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0)
    assert len(data.train) + len(data.validation) == 30


def test_deep_and_odd_images(tmp_path: Path) -> None:
    deep = (np.arange(32 * 32, dtype=np.uint16).reshape(32, 32) * 64).astype(np.uint16)
    folders(tmp_path)
    Image.fromarray(deep).save(tmp_path / "test" / "cat" / "000.png")
    paint(tmp_path / "test" / "cat" / "001.png", mode="L", seed=5)
    Image.new("RGBA", (32, 32), (10, 20, 30, 40)).save(tmp_path / "test" / "dog" / "000.png")
    Image.new("CMYK", (32, 32)).save(tmp_path / "test" / "dog" / "001.jpg")
    images, _ = all_images(
        open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0, statistics=NONE), "test"
    )
    assert np.array_equal((images[0, 0] * 255).round().numpy(), deep >> 8)
    assert (images[2] * 255).round()[:, 0, 0].tolist() == [10, 20, 30]


def test_names_of_any_bytes_and_links_to_nowhere(tmp_path: Path) -> None:
    folders(tmp_path)
    odd = os.fsdecode(bytes(tmp_path) + b"/train/cat/q\xff.png")
    shutil.copy(tmp_path / "train" / "cat" / "000.png", odd)
    assert len(open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0).train) == 28
    (tmp_path / "train" / "dog" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(DataError, match=r"gone\.png: No such file"):
        open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00v\x00{'descr"])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    folders(tmp_path)
    data = open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0)
    wanted = np.array(data.train.pixels.array)
    data.train.pixels.path.write_bytes(damage)
    again = open_data(f"folder:{tmp_path}", (3, 32, 32), seed=0)
    assert np.array_equal(again.train.pixels.array, wanted)


def test_statistics_of_a_file_that_make_no_sense() -> None:
    for wrong in (
        {"mean": [0.5]},
        {"mean": [float("nan")], "std": [1]},
        {"mean": "x", "std": "y"},
        7,
    ):
        with pytest.raises(DataError, match="invalid normalization statistics"):
            open_data("digits", (3, 32, 32), seed=0, statistics=wrong)
