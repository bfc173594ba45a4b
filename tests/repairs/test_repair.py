"""`legr_cli.repair` and `legr repair`: results, law 9, bad input."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nets
import pytest
import torch
from pictures import paint
from running import ROOT, fails, legr
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import legr_cli
from legr_cli.errors import CheckpointError, DataError, LegrError, ModelError, SettingError
from legr_cli.models.card import attach_card, card_of
from legr_cli.models.network import as_network
from legr_cli.progress import Event, Progress
from legr_cli.repairs.closeness import Closeness, closeness_sums, divergences
from legr_cli.repairs.pictures import RepairImages
from legr_cli.repairs.repair import repair_network
from legr_cli.settings import Repair


def build() -> nn.Module:
    """The residual network of `nets`, always with the same weights."""
    return nets.make("residual").float()


def images(count: int = 60, seed: int = 0) -> Tensor:
    return torch.randn(count, *nets.INPUT, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def dense() -> nn.Module:
    return build()


@pytest.fixture
def smaller(dense: nn.Module) -> nn.Module:
    return legr_cli.prune(dense, nets.INPUT, flops=0.5, align=1, arch=build)


def test_a_repaired_network_is_closer_and_its_file_says_so(
    dense: nn.Module, smaller: nn.Module, tmp_path: Path
) -> None:
    before = [copy.deepcopy(model.state_dict()) for model in (dense, smaller)]
    events: list[Event] = []
    usable = legr_cli.repair(smaller, dense, images(), progress=events.append)
    far, close = divergences([smaller, usable], dense, [images(100, seed=1)])
    assert close < 0.5 * far
    for state, model in zip(before, (dense, smaller), strict=True):
        assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    steps = [event for event in events if isinstance(event, Progress)]
    assert [event.done for event in steps] == list(range(4))
    legr_cli.save(usable, tmp_path / "usable.safetensors")
    again = legr_cli.load(tmp_path / "usable.safetensors", arch=build)
    assert torch.equal(again(images(4)), usable(images(4)))
    notes = card_of(again).notes["repaired"]
    assert notes["images"] == 60
    assert notes["divergence"]["after"] < notes["divergence"]["before"]
    assert notes["dense_sha256"] == card_of(smaller).notes["dense_sha256"]


class Frames(Dataset[Tensor]):
    """Pictures without labels."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, row: int) -> Tensor:
        return images()[row]


def test_all_kinds_of_data_give_the_same_weights(dense: nn.Module, smaller: nn.Module) -> None:
    x, labels = images(), torch.arange(60) % 7

    def endless() -> Iterator[Tensor]:
        while True:
            yield from x.split(20)

    forms: list[Any] = [
        x,
        (x, labels),
        DataLoader(TensorDataset(x, labels), batch_size=7, shuffle=True),
        DataLoader(Frames()),
        [(part, None, "name") for part in x.split(11)],
        x.split(13),
    ]
    found = [legr_cli.repair(smaller, dense, form) for form in forms]
    found.append(legr_cli.repair(smaller, dense, endless(), images=60))
    for other in found[1:]:
        assert all(map(torch.equal, found[0].parameters(), other.parameters()))
    fewer = legr_cli.repair(smaller, dense, x, images=30)
    assert card_of(fewer).notes["repaired"]["images"] == 30


@pytest.mark.parametrize("name", nets.NETS)
def test_law_9_on_every_network(name: str) -> None:
    """On pictures that it did not see, repair never takes a network further away."""
    dense = nets.make(name).float()
    network = as_network(legr_cli.prune(dense, nets.INPUT, flops=0.6, align=1))
    given = RepairImages(list(images(20).split(8)), [images(10, seed=1)], {})
    result = repair_network(network, as_network(dense, nets.INPUT), lambda _: given, Repair())
    before, after = divergences([network.model, result.network.model], dense, given.held_out)
    assert after <= before
    assert result.helped == (after < before)


def test_law_9_a_harmful_repair_is_not_kept(dense: nn.Module, smaller: nn.Module) -> None:
    """Fitted to pictures of another world, the network gets worse, so the cut one stays."""
    network, teacher = as_network(smaller), as_network(dense, nets.INPUT)
    given = RepairImages([torch.full((1, *nets.INPUT), 300.0)], [images(40)], {})
    result = repair_network(network, teacher, lambda _: given, Repair(ridge=1e-9))
    assert result.after > result.before
    assert not result.helped
    assert any("did not help" in note for note in result.notes)
    kept = result.network.model.state_dict()
    assert all(torch.equal(kept[name], t) for name, t in smaller.state_dict().items())
    assert "repaired" not in result.network.notes


def test_too_few_pictures_are_said() -> None:
    dense = nets.make("no norm").float()
    small = legr_cli.prune(dense, nets.INPUT, flops=0.6, align=1)
    events: list[Event] = []
    legr_cli.repair(small, dense, images(12), progress=events.append)
    [note] = [str(event) for event in events if "would be better" in str(event)]
    assert "'fc1'" in note


def test_divergence_by_hand() -> None:
    probabilities = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    uniform = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    classes = Closeness(closeness_sums(probabilities.log(), uniform.log()).tolist())
    # image 2: ½ log(½ ÷ ¼) + ½ log(½ ÷ ¾)
    assert classes.divergence == pytest.approx((0.5 * torch.tensor(4 / 3).log()) / 2)
    assert classes.figure == ("agreement", 0.5)  # ties go to the first class
    sums = []
    for part in (slice(0, 1), slice(1, 2)):
        dense = {"boxes": torch.tensor([[[1.0, 3.0]], [[5.0, 7.0]]])[part], "id": torch.tensor([4])}
        found = {"boxes": dense["boxes"] + 1, "id": torch.tensor([4 + (part.start or 0)])}
        sums.append(closeness_sums(found, dense))
    others = Closeness(torch.stack(sums).sum(0).tolist())
    # Σ error² / Σ (d − 4)², and one id of two
    assert others.divergence == pytest.approx(4 / 20 + 1 / 2)
    assert others.figure == ("relative error", pytest.approx(((4 / 20 + 1 / 2) / 2) ** 0.5))
    broken = closeness_sums(torch.full((2, 3), torch.nan), torch.zeros(2, 3))
    assert Closeness(broken.tolist()).divergence == float("inf")


def test_outputs_of_nan_are_never_close() -> None:
    for shape in ((2, 3), (2, 3, 4, 4), (2, 1)):
        nan, zeros = torch.full(shape, torch.nan), torch.zeros(shape)
        for found, dense in ((nan, nan), (nan, zeros), (zeros, nan)):
            far = Closeness(closeness_sums(found, dense).tolist())
            assert far.divergence == float("inf")
            if shape[1] == 3 and found is nan:
                assert far.figure[1] == 0
    same = Closeness(closeness_sums(torch.ones(2, 1), torch.ones(2, 1)).tolist())
    assert same.divergence == 0  # a constant has no variance


def test_a_number_for_the_whole_batch_is_not_compared() -> None:
    maps, loss = torch.eye(3).repeat(2, 1, 1)[..., None], torch.tensor(5.0)
    empty = maps[:, :0]
    both = closeness_sums((loss, maps, empty), (loss + 1, maps, empty))
    assert torch.equal(both, closeness_sums(maps, maps))
    with pytest.raises(ModelError, match="nothing for each image"):
        closeness_sums(loss, loss)


def trained(model: nn.Module) -> nn.Module:
    card = card_of(model)
    card.notes["training"] = {"recipe": "quick"}
    return attach_card(model, card)


Call = Callable[[nn.Module, nn.Module], object]
BAD: dict[str, tuple[type[LegrError], str, Call]] = {
    "other weights": (
        CheckpointError,
        "other weights",
        lambda small, dense: legr_cli.repair(small, nets.enliven(nets.Residual()), images()),
    ),
    "other architecture": (
        CheckpointError,
        "is not the network",
        lambda small, dense: legr_cli.repair(small, nets.make("plain").float(), images()),
    ),
    "no card": (
        ModelError,
        "not pruned by legr",
        lambda small, dense: legr_cli.repair(dense, dense, images()),
    ),
    "nothing removed": (
        ModelError,
        "nothing was removed",
        lambda small, dense: legr_cli.repair(
            legr_cli.prune(dense, nets.INPUT, flops=1.0), dense, images()
        ),
    ),
    "fine-tuned already": (
        ModelError,
        "--force",
        lambda small, dense: legr_cli.repair(trained(small), dense, images()),
    ),
    "one picture": (
        DataError,
        "at least 2",
        lambda small, dense: legr_cli.repair(small, dense, images(1)),
    ),
    "pictures of another size": (
        DataError,
        "3x8x8",
        lambda small, dense: legr_cli.repair(small, dense, torch.rand(4, 3, 8, 8)),
    ),
    "bytes": (
        DataError,
        "uint8",
        lambda small, dense: legr_cli.repair(small, dense, images().byte()),
    ),
    "NaN in a picture": (
        DataError,
        "NaN",
        lambda small, dense: legr_cli.repair(
            small, dense, images().masked_fill(images() > 3, torch.nan)
        ),
    ),
    "infinite activations": (
        ModelError,
        "'stem' has NaN",
        lambda small, dense: legr_cli.repair(small, dense, images() * 1e37),
    ),
    "words": (
        DataError,
        "tensors of images",
        lambda small, dense: legr_cli.repair(small, dense, ["left", "right"]),
    ),
    "a number": (
        DataError,
        "SPEC",
        lambda small, dense: legr_cli.repair(small, dense, 5),
    ),
    "an empty list": (
        DataError,
        "empty",
        lambda small, dense: legr_cli.repair(small, dense, []),
    ),
    "no ridge": (
        SettingError,
        "--ridge",
        lambda small, dense: legr_cli.repair(small, dense, images(), ridge=0),
    ),
    "a replaced layer": (
        ModelError,
        "no longer fits its card: 'a.bias' changed from",
        lambda small, dense: legr_cli.repair(replaced(small), dense, images()),
    ),
}


def replaced(model: nn.Module) -> nn.Module:
    model.a = nn.Conv2d(2, 3, 1)
    return model


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_error(name: str, dense: nn.Module, smaller: nn.Module) -> None:
    error, words, call = BAD[name]
    with pytest.raises(error, match=words) as caught:
        call(smaller, dense)
    assert len(str(caught.value).splitlines()) == 1


SCARCE = """
import resource, sys, torch, legr_cli, nets
torch.set_num_threads(1)
dense = nets.make("residual").float()
small = legr_cli.prune(dense, (3, 96, 96), flops=0.6, align=1)
pictures = torch.rand(900, 3, 96, 96)
legr_cli.repair(small, dense, pictures[:4])  # imports what it needs
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2 * pictures.nbytes,) * 2)
try:
    legr_cli.repair(small, dense, pictures, images=900)
except legr_cli.LegrError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on memory")
def test_too_little_memory_is_one_error() -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command, env = [sys.executable, "-c", SCARCE], {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "not enough memory" in done.stdout
    assert "--images" in done.stdout


def test_force_repairs_what_is_fine_tuned(dense: nn.Module, smaller: nn.Module) -> None:
    usable = legr_cli.repair(trained(smaller), dense, images(), force=True)
    assert "training" not in card_of(usable).notes


def test_the_command(tmp_path: Path) -> None:
    """A folder of pictures of any size and mode, at any depth, is all it takes."""
    dense, cut, out = tmp_path / "dense.pth", tmp_path / "cut", tmp_path / "fixed"
    torch.manual_seed(0)
    legr_cli.save(legr_cli.load("random:small_cifar"), tmp_path / "dense.safetensors")
    dense = tmp_path / "dense.safetensors"
    for number in range(12):
        where = tmp_path / "camera" / ("day" if number % 2 else "night/late")
        paint(where / f"{number}.png", (40 + number, 33), number, "L" if number % 3 else "RGB")
    legr("prune", dense, "--flops", "0.5,0.7", "--out", cut)
    spec, given = f"images:{tmp_path / 'camera'}", sorted(cut.iterdir())
    base = ("repair", *given, "--dense", dense, "--data", spec, "--normalize", "cifar10")
    result = json.loads(legr(*base, "--out", out, "--json"))
    assert [Path(row["file"]).name for row in result["repaired"]] == [f.name for f in given]
    for row in result["repaired"]:
        assert row["images"] == 12
        assert row["held_out"] == 2
        assert row["divergence"]["after"] < row["divergence"]["before"]
        notes = card_of(legr_cli.load(row["file"])).notes
        assert len(notes["commands"]) == 2
        assert notes["repaired"]["ridge"] == 0.1
        assert notes["pictures"]["resize"] == "crop"
        assert notes["statistics"]["mean"] == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-3)
    single = ("repair", given[0], *base[3:], "--resize", "squash")
    shown = legr(*single, "--out", tmp_path / "a.safetensors")
    assert shown.splitlines()[-1].endswith("a.safetensors")
    notes = card_of(legr_cli.load(tmp_path / "a.safetensors")).notes
    assert notes["pictures"]["resize"] == "squash"
    fails_with = {
        "is a single file": (*base, "--out", tmp_path / "b.safetensors"),
        "would overwrite": (*base, "--out", cut),
        "nothing was removed": ("repair", dense, *base[3:], "--out", tmp_path / "b.safetensors"),
        "no labels": ("evaluate", given[0], "--data", spec),
        "0.0": (*base, "--ridge", "0", "--out", tmp_path / "c"),
    }
    (tmp_path / "camera" / "day" / "broken.png").write_bytes(b"no picture")
    fails_with["broken.png"] = (*base, "--out", tmp_path / "c")
    (tmp_path / "empty").mkdir()
    fails_with["has no images"] = (
        *base[:5],
        "--data",
        f"images:{tmp_path / 'empty'}",
        "--out",
        tmp_path / "c",
    )
    for words, args in fails_with.items():
        assert words in fails(*args)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"dense.safetensors", "camera", "cut", "fixed", "a.safetensors", "empty"}
