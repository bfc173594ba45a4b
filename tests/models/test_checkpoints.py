"""Law 7: a network that legr opened gives the output of the user's own module, exactly."""

import argparse
import collections
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torchvision.ops import FrozenBatchNorm2d

import legr_cli
from legr_cli.errors import CheckpointError
from legr_cli.models.card import card_of
from legr_cli.models.network import WithoutMemory
from legr_cli.models.registry import Arch, build, with_weights

SHAPE = (3, 32, 32)


def picture(shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.rand(1, *shape, generator=generator, dtype=torch.float64)


def same_output(opened: nn.Module, own: nn.Module, shape: tuple[int, ...] = SHAPE) -> bool:
    """Exactly equal in double precision, and not a constant."""
    with torch.no_grad():
        a, b = (model.eval().double()(picture(shape)) for model in (opened, own))
    assert float(b.std()) > 0
    return torch.equal(a, b)


class Small(nn.Sequential):
    """A classifier with odd widths."""

    def __init__(self, width: int = 13, num_classes: int = 5) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.append(nn.Linear(width, num_classes))


class Frozen(Small):
    """Norms that are never trained."""

    def __init__(self) -> None:
        super().__init__()
        self[1] = FrozenBatchNorm2d(13)


class Wrapper(nn.Module):
    """Attributes named like wrappers, and a classifier by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.model = nn.Conv2d(3, 7, 3), nn.Conv2d(7, 7, 3)
        self.fc, self.linear = nn.Linear(7, 7), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.fc(self.model(self.module(x).relu()).mean((2, 3))).relu())


def normed() -> nn.Module:
    """A convolution under weight norm, as torch does it today."""
    return nn.Sequential(weight_norm(nn.Conv2d(3, 7, 3)), nn.Flatten(), nn.Linear(6300, 3))


def normed_before() -> nn.Module:
    """The same under weight norm as torch did it: `weight_g` and `weight_v`."""
    with pytest.warns(FutureWarning):
        first = nn.utils.weight_norm(nn.Conv2d(3, 7, 3))
    return nn.Sequential(first, nn.Flatten(), nn.Linear(6300, 3))


def saved(content: Any, path: Path) -> Path:
    torch.save(content, path)
    return path


@pytest.fixture
def own() -> nn.Module:
    """The user's own trained module."""
    return nets.enliven(Small())


@pytest.mark.parametrize("suffix", [".pt", ".ckpt", ".bin", ".pkl", ".pth.tar"])
def test_suffixes(own: nn.Module, tmp_path: Path, suffix: str) -> None:
    path = saved(own.state_dict(), tmp_path / f"w{suffix}")
    assert same_output(legr_cli.load(path, Small), own)


CLASSIFIERS = {
    "resnet18": (3, 64, 64),
    "mnasnet0_5": (3, 64, 64),
    "densenet121": (3, 64, 64),
    "shufflenet_v2_x0_5": (3, 64, 64),
    "squeezenet1_1": (3, 64, 64),
    "regnet_y_400mf": (3, 64, 64),
    "swin_t": (3, 64, 64),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_torchvision_by_arch(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    own = nets.enliven(torchvision.models.get_model(name, weights=None))
    path = saved(own.state_dict(), tmp_path / "w.pth")
    assert same_output(legr_cli.load(path, name), own, CLASSIFIERS[name])


@pytest.mark.parametrize("name", ["mnasnet0_5", "swin_t"])
def test_versions_survive_legr_files(name: str, tmp_path: Path) -> None:
    """A safetensors file has no versions: legr's are those of the network that was saved."""
    own = legr_cli.load(f"random:{name}", input_shape=(3, 64, 64))
    legr_cli.save(own, tmp_path / "net.safetensors")
    assert same_output(legr_cli.load(tmp_path / "net.safetensors"), own, (3, 64, 64))


def test_files_without_any_version(tmp_path: Path) -> None:
    own = nets.enliven(torchvision.models.mnasnet0_5(weights=None))
    path = saved(dict(own.state_dict()), tmp_path / "plain.pth")
    assert same_output(legr_cli.load(path, "mnasnet0_5"), own, (3, 64, 64))


def test_an_older_version_of_a_network_is_not_taken_for_todays(tmp_path: Path) -> None:
    model = torchvision.models.mnasnet0_5(weights=None)
    with pytest.warns(UserWarning, match="previous version"):  # its first layers were wider
        model._load_from_state_dict({}, "", {"version": 1}, False, [], [], [])
    path = saved(model.state_dict(), tmp_path / "old.pth")
    with (
        pytest.warns(UserWarning, match="previous version"),
        pytest.raises(CheckpointError, match=r"older version of itself \(layers\.0\.weight"),
    ):
        legr_cli.load(path, "mnasnet0_5")


def test_densenets_public_names(tmp_path: Path) -> None:
    """`denselayer1.norm.1.weight`, as torchvision's files have it, is `norm1` today."""
    own = nets.enliven(torchvision.models.densenet121(weights=None))
    old = {}
    for name, tensor in own.state_dict().items():
        *layer, last = name.split(".")
        if "denselayer" in name and layer[-1] in ("norm1", "norm2", "conv1", "conv2"):
            layer[-1] = f"{layer[-1][:-1]}.{layer[-1][-1]}"
        if last != "num_batches_tracked":
            old[".".join([*layer, last])] = tensor
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    path = saved(old, tmp_path / "densenet121-a639ec97.pth")
    assert same_output(legr_cli.load(path, "densenet121"), own, (3, 64, 64))


def test_hooks_rename_and_drop(own: nn.Module, tmp_path: Path) -> None:
    """FrozenBatchNorm2d drops a tensor, weight norm renames two, both by hooks of their own."""
    frozen = Frozen()
    frozen.load_state_dict(own.state_dict())
    path = saved(own.state_dict(), tmp_path / "tracked.pth")
    assert same_output(legr_cli.load(path, Frozen), frozen)
    old = normed_before()
    now = normed()
    now.load_state_dict(old.state_dict())
    wrapped = {f"module.{name}": tensor for name, tensor in old.state_dict().items()}
    for number, content in enumerate((old.state_dict(), {"net": wrapped})):
        path = saved(content, tmp_path / f"{number}.pth")
        assert same_output(legr_cli.load(path, normed), now)


def test_batch_counts_may_be_absent(own: nn.Module, tmp_path: Path) -> None:
    weights = own.state_dict()
    del weights["1.num_batches_tracked"]  # the versions say that there is one
    assert same_output(legr_cli.load(saved(weights, tmp_path / "w.pth"), Small), own)


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "model.", "net.", "_orig_mod.module.", "model.net.module."]
)
def test_wrappers_are_taken_off(own: nn.Module, tmp_path: Path, prefix: str) -> None:
    weights = {f"{prefix}{name}": tensor for name, tensor in own.state_dict().items()}
    path = saved({"state_dict": weights}, tmp_path / "w.pth")
    assert same_output(legr_cli.load(path, Small), own)


def test_wrapped_modules_of_torch_itself(own: nn.Module, tmp_path: Path) -> None:
    """DataParallel, also around a part; torch.compile; an average of weights."""
    part = nets.enliven(torchvision.models.squeezenet1_1(num_classes=3))
    inner = torchvision.models.squeezenet1_1(num_classes=3)
    inner.load_state_dict(part.state_dict())
    inner.features = nn.DataParallel(inner.features)
    path = saved(inner.state_dict(), tmp_path / "part.pth")
    assert same_output(legr_cli.load(path, "squeezenet1_1", classes=3), part, (3, 64, 64))
    for wrap in (nn.DataParallel, torch.compile, torch.optim.swa_utils.AveragedModel):
        path = saved(wrap(own).state_dict(), tmp_path / "whole.pth")
        assert same_output(legr_cli.load(path, Small), own)


def test_attributes_named_like_wrappers_stay(tmp_path: Path) -> None:
    own = nets.enliven(Wrapper())
    path = saved(own.state_dict(), tmp_path / "w.pth")
    assert same_output(legr_cli.load(path, Wrapper), own)
    twice = {f"module.{name}": tensor for name, tensor in own.state_dict().items()}
    assert same_output(legr_cli.load(saved(twice, path), Wrapper), own)


def test_cifar_resnets_call_it_linear(tmp_path: Path) -> None:
    own = legr_cli.load("random:resnet20")
    weights = {name.replace("linear.", "fc."): t for name, t in own.state_dict().items()}
    path = saved(weights, tmp_path / "w.th")
    assert same_output(legr_cli.load(path, "resnet20"), own)


def test_lightning(own: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The network is one of the module's attributes; beside it stand a loss and the training."""
    weights = {f"model.{name}": tensor for name, tensor in own.state_dict().items()}
    optimizer = torch.optim.Adam(own.parameters())
    own.double()(picture()).sum().backward()
    optimizer.step()
    own.float()
    weights = {f"model.{name}": tensor for name, tensor in own.state_dict().items()}
    checkpoint = {
        "epoch": 3,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": collections.OrderedDict(weights, **{"criterion.weight": torch.ones(5)}),
        "callbacks": {"ModelCheckpoint": {"best": torch.tensor(0.9), "path": Path("a.ckpt")}},
        "optimizer_states": [optimizer.state_dict()],
        "hyper_parameters": {"lr": 0.1, "args": argparse.Namespace(a=1), "seen": np.arange(3)},
    }
    with caplog.at_level(logging.INFO):
        opened = legr_cli.load(saved(checkpoint, tmp_path / "last.ckpt"), Small)
    assert same_output(opened, own)
    assert "ignored 1 tensors" in caplog.text
    assert "criterion.weight" in caplog.text


NESTINGS: dict[str, Callable[[Any], Any]] = {
    "mmcv": lambda weights: {"meta": {"epoch": 1, "CLASSES": ("a",)}, "state_dict": weights},
    "esrgan": lambda weights: {"params": weights},
    "ema": lambda weights: {"ema": {"module": weights}, "decay": 0.9},
    "ignite": lambda weights: {"trainer": {}, "model_state": weights, "optimizer": {"state": {}}},
    "beside": lambda weights: {**weights, "epoch": 4, "lr": 0.1},
    "deep": lambda weights: {"run": {3: {"best": {"weights": weights}}}},
    "another network, too": lambda weights: {
        "discriminator": nn.Conv2d(3, 5, 3).state_dict(),
        "generator": weights,
    },
}


@pytest.mark.parametrize("name", NESTINGS)
def test_any_nesting(own: nn.Module, tmp_path: Path, name: str) -> None:
    path = saved(NESTINGS[name](own.state_dict()), tmp_path / "w.pth")
    opened = legr_cli.load(path, Small)
    assert same_output(opened, own)
    assert "weights" not in card_of(opened).notes  # there was no choice


def test_which_of_two_is_told_and_chosen(
    own: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    average = nets.enliven(Small())
    with torch.no_grad():
        for parameter in average.parameters():
            parameter.mul_(0.5)
    both = {"state_dict_ema": average.state_dict(), "state_dict": own.state_dict()}
    path = saved({"run": both}, tmp_path / "w.pth")
    with caplog.at_level(logging.INFO):
        opened = legr_cli.load(path, Small)
    assert same_output(opened, own)
    assert card_of(opened).notes["weights"] == "run.state_dict"
    assert "using run.state_dict, --weights KEY selects another" in caplog.text
    opened = legr_cli.load(path, Small, weights="run.state_dict_ema")
    assert same_output(opened, average)
    assert card_of(opened).notes["weights"] == "run.state_dict_ema"
    legr_cli.save(opened, tmp_path / "net.safetensors", input_shape=SHAPE)
    again = legr_cli.load(tmp_path / "net.safetensors", Small)
    assert card_of(again).notes["weights"] == "run.state_dict_ema"


def test_a_key_may_lead_into_the_names(own: nn.Module, tmp_path: Path) -> None:
    teacher = nets.enliven(Small())
    weights = {f"student.{name}": tensor for name, tensor in own.state_dict().items()}
    weights |= {f"teacher.{name}": tensor for name, tensor in teacher.state_dict().items()}
    path = saved({"state_dict": weights}, tmp_path / "w.ckpt")
    both = r"state_dict\.student, state_dict\.teacher fit .*Small: name one with --weights"
    with pytest.raises(CheckpointError, match=both):
        legr_cli.load(path, Small)
    assert same_output(legr_cli.load(path, Small, weights="state_dict.student"), own)


def test_the_only_part_that_fits_is_taken_with_a_note(
    own: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = {f"policy.body.{name}": tensor for name, tensor in own.state_dict().items()}
    path = saved({"state_dict": {**weights, "loss.weight": torch.ones(3)}}, tmp_path / "w.ckpt")
    with caplog.at_level(logging.INFO):
        assert same_output(legr_cli.load(path, Small), own)
    assert "took what is at state_dict.policy.body" in caplog.text


def test_harmless_strangers_are_ignored_with_a_note(
    own: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = own.state_dict()
    weights |= {"total_ops": torch.zeros(1), "0.total_params": torch.zeros(1)}
    path = saved(weights, tmp_path / "w.pth")
    with caplog.at_level(logging.INFO):
        assert same_output(legr_cli.load(path, Small), own)
    assert "ignored 2 tensors" in caplog.text
    path = saved({**weights, "6.weight": torch.zeros(3)}, path)
    with pytest.raises(CheckpointError, match=r"unexpected 6\.weight"):
        legr_cli.load(path, Small)


def test_half_precision_files_become_what_torch_makes_of_them(
    own: nn.Module, tmp_path: Path
) -> None:
    path = saved({n: t.half() for n, t in own.state_dict().items()}, tmp_path / "w.pth")
    own.load_state_dict(torch.load(path))
    assert same_output(legr_cli.load(path, Small), own)


def deep(levels: int) -> Any:
    content: Any = {"weight": torch.zeros(3)}
    for _ in range(levels):
        content = {"inner": content}
    return content


ODD: dict[str, tuple[Any, str]] = {
    "a list": ([[torch.zeros(3)], [[torch.zeros(2)]]], "contains no state dict"),
    "a tensor": (torch.zeros(3), "contains no state dict"),
    "nothing": (None, "contains no state dict"),
    "empty": ({}, "contains no state dict: save"),
    "numbered": ({0: torch.zeros(3), 1: torch.zeros(2)}, r"contains no state dict \(it has 0, 1\)"),
    "tensors in lists": ({"weights": [torch.zeros(3)]}, r"\(it has weights\)"),
    "no dimensions": ({"0.weight": torch.tensor(1.0)}, "it has no 0.bias"),
    "a scalar": (
        {**Small().state_dict(), "0.weight": torch.tensor(1.0)},
        "is a scalar in the file",
    ),
    "another type": ({**Small().state_dict(), "0.weight": "text"}, "has no 0.weight"),
    "complex": ({**Small().state_dict(), "0.weight": torch.zeros(3) * 1j}, "complex"),
    "on meta": ({**Small().state_dict(), "0.bias": torch.zeros(13, device="meta")}, "save it as"),
    "two lines": ({**Small().state_dict(), "a\nb": torch.zeros(1)}, r"unexpected 'a\\nb'"),
    "deep": (deep(300), "does not match"),
    "other classes": (Small(num_classes=7).state_dict(), "pass --classes 7"),
    "other width": (Small(11).state_dict(), "0.weight is 11x3x3x3 in the file, 13x3x3x3"),
    "others": (
        {"g": {"a": torch.zeros(1)}, "d": nn.Conv2d(3, 5, 3).state_dict()},
        "it has tensors at g, d",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_one_clear_error(name: str, tmp_path: Path) -> None:
    content, words = ODD[name]
    path = saved(content, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=words) as caught:
        legr_cli.load(path, Small)
    assert len(str(caught.value).splitlines()) == 1


def test_versions_that_are_none_are_no_traceback(own: nn.Module, tmp_path: Path) -> None:
    weights = own.state_dict()
    for versions in ({"": 3}, 5, {1: {"version": "x"}}, {"1": {"version": None}}):
        weights._metadata = versions
        assert same_output(legr_cli.load(saved(weights, tmp_path / "w.pth"), Small), own.float())
    weights._metadata = {"1": {"version": "x"}}
    with pytest.raises(CheckpointError, match="cannot be loaded into"):
        legr_cli.load(saved(weights, tmp_path / "w.pth"), Small)


def test_an_own_hook_that_fails(own: nn.Module, tmp_path: Path) -> None:
    class Picky(Small):
        def _load_from_state_dict(self, *args: Any) -> None:
            raise KeyError("on\npurpose")

    path = saved(own.state_dict(), tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="cannot be loaded into") as caught:
        legr_cli.load(path, Picky)
    assert len(str(caught.value).splitlines()) == 1


# What torchvision does with `weights=`


def served(
    name: str, weights: str, content: Any, monkeypatch: pytest.MonkeyPatch
) -> torchvision.models.WeightsEnum:
    """torchvision's weights of this name, with our numbers in the place of the download."""
    enum = torchvision.models.get_model_weights(name)[weights]
    monkeypatch.setattr(
        torchvision.models.WeightsEnum, "get_state_dict", lambda *_, **__: content.copy()
    )
    return enum


def heads_on(name: str) -> nn.Module:
    """The network as torchvision published it, with auxiliary heads."""
    options = {"weights": None, "init_weights": False, "aux_logits": True}
    torch.manual_seed(2)
    return nets.enliven(torchvision.models.get_model(name, **options))


@pytest.mark.parametrize(("name", "side"), [("googlenet", 64), ("inception_v3", 80)])
def test_transform_input(
    name: str, side: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = heads_on(name).state_dict()
    enum = served(name, "IMAGENET1K_V1", content, monkeypatch)
    theirs = torchvision.models.get_model(name, weights=enum)
    assert theirs.transform_input
    shape = (3, side, side)
    assert same_output(legr_cli.load(f"torchvision:{name}"), theirs, shape)
    opened = legr_cli.load(saved(content, tmp_path / f"{name}.pth"), name)
    assert same_output(opened, theirs, shape)
    legr_cli.save(opened.float(), tmp_path / "net.safetensors", input_shape=shape)
    assert same_output(legr_cli.load(tmp_path / "net.safetensors"), theirs, shape)
    plain = legr_cli.load(tmp_path / f"{name}.pth", f"{name},transform_input=False")
    assert not same_output(plain, theirs, shape)


def test_legr_files_without_the_option_stay_without_it(tmp_path: Path) -> None:
    """As legr wrote them before it knew of the option."""
    own = legr_cli.load("random:googlenet", input_shape=(3, 64, 64))
    legr_cli.save(own, tmp_path / "net.safetensors")
    opened = legr_cli.load(tmp_path / "net.safetensors")
    assert card_of(opened).arch.options == {}
    assert not opened.transform_input
    assert same_output(opened, own, (3, 64, 64))


def test_a_file_with_other_classes_was_not_torchvisions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = torchvision.models.googlenet(weights=None, num_classes=7, init_weights=False)
    path = saved(nets.enliven(own).state_dict(), tmp_path / "w.pth")
    with caplog.at_level(logging.INFO):
        assert same_output(legr_cli.load(path, "googlenet", classes=7), own, (3, 64, 64))
    assert "if that is wrong, pass --arch googlenet,transform_input=True" in caplog.text


@pytest.mark.parametrize(
    "name", ["retinanet_resnet50_fpn", "fasterrcnn_mobilenet_v3_large_320_fpn"]
)
def test_frozen_norms_of_detectors(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    options = {"weights": None, "weights_backbone": None}
    trained = nets.enliven(torchvision.models.get_model(name, **options))
    content = trained.state_dict()
    published = {n: t for n, t in content.items() if not n.endswith("num_batches_tracked")}
    enum = served(name, "COCO_V1", published, monkeypatch)
    theirs = torchvision.models.get_model(name, weights=enum)
    assert any(isinstance(module, FrozenBatchNorm2d) for module in theirs.modules())
    path = saved(published, tmp_path / "public.pth")
    for opened in (legr_cli.load(f"torchvision:{name}"), legr_cli.load(path, name)):
        assert features(opened) == features(theirs)
    opened = legr_cli.load(saved(content, tmp_path / "own.pth"), name)
    assert features(opened) == features(trained)
    assert features(opened) != features(theirs)


def features(detector: nn.Module) -> list[list[float]]:
    """What a detector's backbone gives, to the last digit."""
    with torch.no_grad():
        found = detector.eval().double().backbone(picture((3, 64, 64)))
    assert all(float(feature.std()) > 0 for feature in found.values())
    return [feature.flatten().tolist() for feature in found.values()]


def test_auxiliary_classifiers_of_segmentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, options = "deeplabv3_mobilenet_v3_large", {"weights": None, "weights_backbone": None}
    for aux in (False, True):
        own = torchvision.models.get_model(name, **options, aux_loss=aux)
        content = nets.enliven(own).state_dict()
        path = saved(content, tmp_path / "w.pth")
        found = legr_cli.load(path, name).eval()(picture((3, 64, 64)).float())
        expected = own.eval()(picture((3, 64, 64)).float())
        assert list(found) == list(expected) == (["out", "aux"] if aux else ["out"])
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    served(name, "COCO_WITH_VOC_LABELS_V1", content, monkeypatch)
    found = legr_cli.load(f"torchvision:{name}").eval()(picture((3, 64, 64)).float())
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lraspp_mobilenet_v3_large", (3, 224, 224)),
        ("r3d_18", (3, 16, 112, 112)),
        ("ssdlite320_mobilenet_v3_large", (3, 320, 320)),
        ("vit_b_16,image_size=64", (3, 64, 64)),
    ],
)
def test_default_inputs_run(name: str, shape: tuple[int, ...]) -> None:
    network = legr_cli.load(f"random:{name}")
    assert card_of(network).input_shape == shape
    with torch.no_grad():
        assert len(network(torch.rand(1, *shape))) == 1


PUBLISHED = [
    (name, weights.name)
    for module in (
        torchvision.models,
        torchvision.models.segmentation,
        torchvision.models.detection,
        torchvision.models.video,
    )
    for name in torchvision.models.list_models(module=module)
    for weights in torchvision.models.get_model_weights(name)
]
NOT_BUILT = {"inception_v3": 3_326_696}  # parameters of the auxiliary head
FEATURES_ONLY = "IMAGENET1K_FEATURES"  # of VGG-16: counted without its classifier


@pytest.mark.parametrize(("name", "weights"), PUBLISHED)
def test_every_network_is_as_large_as_torchvision_says(name: str, weights: str) -> None:
    """torchvision states how many parameters its builder makes with each of its weights."""
    meta = torchvision.models.get_model_weights(name)[weights].meta
    with WithoutMemory():
        model = build(with_weights(Arch(name), weights))
    count = sum(parameter.numel() for parameter in model.parameters())
    if weights != FEATURES_ONLY:
        assert count == meta["num_params"] - NOT_BUILT.get(name, 0)
