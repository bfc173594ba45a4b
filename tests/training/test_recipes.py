"""Recipes and losses in the paper's own numbers and in ones worked out by hand."""

import math

import pytest
import torch
from torch import nn

from legr_cli.data.feed import Feed
from legr_cli.errors import SettingError
from legr_cli.settings import Training, parse_drops
from legr_cli.training.ema import ema_model
from legr_cli.training.loop import Trainer, sgd, train
from legr_cli.training.objective import objective, teacher_from
from legr_cli.training.recipes import RECIPES, rate, settings_of
from legr_cli.training.tasks import CLASSIFICATION

SCHEDULES = {  # recipe → epochs, and the learning rate in these (counted from 0)
    "cifar-train": (
        200,
        {0: 0.1, 59: 0.1, 60: 0.02, 119: 0.02, 120: 0.004, 159: 0.004, 160: 8e-4, 199: 8e-4},
    ),
    "cifar": (
        60,
        {0: 0.01, 17: 0.01, 18: 1e-3, 35: 1e-3, 36: 1e-4, 47: 1e-4, 48: 1e-5, 59: 1e-5},
    ),
    "birds": (
        60,
        {0: 0.01, 17: 0.01, 18: 1e-3, 35: 1e-3, 36: 1e-4, 47: 1e-4, 48: 1e-5, 59: 1e-5},
    ),
    "cifar10-long": (
        400,
        {0: 0.01, 119: 0.01, 120: 2e-3, 239: 2e-3, 240: 4e-4, 319: 4e-4, 320: 8e-5, 399: 8e-5},
    ),
    "imagenet": (60, {0: 0.01, 29: 0.01, 30: 1e-3, 44: 1e-3, 45: 1e-4, 59: 1e-4}),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_papers_schedules(name: str) -> None:
    epochs, rates = SCHEDULES[name]
    settings = settings_of(name)
    assert settings.epochs == epochs
    for epoch, lr in rates.items():
        assert rate(settings, epoch) == pytest.approx(lr)
        assert rate(settings, epoch + 0.999) == pytest.approx(lr)
    assert (settings.momentum, settings.nesterov) == (0.9, True)
    assert (settings.weight_decay, settings.batch_size) == (5e-4, 128)
    assert settings.patience == (20 if name == "birds" else 0)
    assert (settings.clip, settings.ema, settings.label_smoothing) == (0, 0, 0)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("epochs", [1, 2, 7, 30])
def test_a_shorter_recipe_keeps_its_shape(name: str, epochs: int) -> None:
    whole, short = settings_of(name), settings_of(name, epochs=epochs)
    for i in range(100):
        part = (i + 0.5) / 100
        assert rate(short, part * epochs) == pytest.approx(rate(whole, part * whole.epochs))
    assert short.patience == (math.ceil(epochs / 3) if name == "birds" else 0)


def test_one_cycle() -> None:
    """Up in a straight line for a quarter, then half a cosine: at a third of it 3/4 are left."""
    settings = settings_of("quick", epochs=10, lr=0.4, warmup=0.25)
    wanted = {0.5: 0.08, 1.25: 0.2, 2.5: 0.4, 5.0: 0.3, 6.25: 0.2, 7.5: 0.1, 10: 0.0}
    for epochs, lr in wanted.items():
        assert rate(settings, epochs) == pytest.approx(lr)


def test_every_number_can_be_set() -> None:
    settings = settings_of("cifar", epochs=9, lr=0.5, drops=(2.0, 4.5), drop_by=4.0, warmup=0.1)
    wanted = {0.45: 0.25, 1: 0.5, 2: 0.125, 4.4: 0.125, 4.5: 0.03125}
    for epochs, lr in wanted.items():
        assert rate(settings, epochs) == pytest.approx(lr)
    assert parse_drops("18,36,4.5") == (18.0, 36.0, 4.5)
    assert parse_drops("none") == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, "--epochs must be at least 1, got 0"),
        ({"epochs": 10**400}, "--epochs must be at most 1000000"),
        ({"lr": 0}, "--lr must be positive, got 0"),
        ({"lr": math.nan}, "--lr must be positive, got nan"),
        ({"lr": -1}, "--lr must be positive, got -1"),
        ({"schedule": "cosine"}, "--schedule must be steps or one-cycle, got cosine"),
        ({"drops": (2.0,)}, "--drops is for --schedule steps, this is one-cycle"),
        ({"drop_by": 2.0}, "--drop-by is for --schedule steps, this is one-cycle"),
        ({"schedule": "steps", "drops": (3.0, 2.0)}, "--drops: expected increasing epochs"),
        ({"schedule": "steps", "drops": (5.0,)}, "between 0 and --epochs 5"),
        ({"schedule": "steps", "drops": tuple(i / 9 for i in range(1, 30))}, "expected at most 20"),
        ({"momentum": 1.5}, "--momentum must be at most"),
        ({"momentum": 0}, "pass --no-nesterov"),
        ({"ema": 1}, "--ema must be at most 0.999999, got 1"),
        ({"label_smoothing": 1}, "--label-smoothing must be at most"),
        ({"teacher_weight": 2}, "--teacher-weight must be at most 1, got 2"),
        ({"temperature": 0}, "--temperature must be at least 0.01, got 0"),
        ({"clip": -1}, "--clip must be at least 0, got -1"),
        ({"batch_size": 1}, "--batch-size must be at least 2, got 1"),
        ({"warmup": 1}, "--warmup must be at most"),
        ({"patience": -1}, "--patience must be at least 0"),
    ],
)
def test_settings_that_make_no_sense(given: dict, message: str) -> None:
    with pytest.raises(SettingError, match=message.replace("(", r"\(")):
        settings_of("quick", **given)


@pytest.mark.parametrize("text", ["", "x", "1,,2", "1..5", ".", "-3", "nan", "1e9"])
def test_drops_that_are_none(text: str) -> None:
    with pytest.raises(SettingError, match=r"--drops .*expected epochs such as 18,36,48, or none"):
        parse_drops(text)


def test_an_unknown_recipe_names_the_known_ones() -> None:
    with pytest.raises(
        SettingError, match=r"--recipe fast: expected quick, repaired, match, cifar, cifar10-long"
    ):
        settings_of("fast")


def plain(**given: object) -> Training:
    return Training(recipe="quick", epochs=1, lr=0.1, **given)  # type: ignore[arg-type]


def test_label_smoothing() -> None:
    """Logits (ln 3, 0), label 0: p = (3/4, 1/4). With ε = 0.2 the label is (0.9, 0.1)."""
    logits, labels = torch.tensor([[math.log(3), 0.0]]), torch.tensor([0])
    loss = objective(plain(label_smoothing=0.2), None, CLASSIFICATION)(logits, logits, labels)
    assert loss.item() == pytest.approx(-0.9 * math.log(0.75) - 0.1 * math.log(0.25))


def test_distillation() -> None:
    """T = 2: the network's p = (√3, 1) / (√3 + 1), the teacher's q = (1/2, 1/2); weight 0.3."""
    logits, labels = torch.tensor([[math.log(3), 0.0]]), torch.tensor([0])
    settings = plain(teacher_weight=0.3, temperature=2.0)
    loss = objective(settings, torch.zeros_like, CLASSIFICATION)(logits, logits, labels)
    p = math.sqrt(3) / (math.sqrt(3) + 1)
    kl = 0.5 * math.log(0.5 / p) + 0.5 * math.log(0.5 / (1 - p))
    assert loss.item() == pytest.approx(-0.7 * math.log(0.75) + 0.3 * 4 * kl, rel=1e-5)
    same = objective(plain(teacher_weight=1.0), lambda x: x, CLASSIFICATION)(logits, logits, labels)
    assert same.item() == pytest.approx(0, abs=1e-7)


def test_a_teacher_sees_images_in_its_own_normalisation() -> None:
    """The pixel 0.6 is 1 for the network, (0.6 − 0.2) / 0.5 = 0.8 for the teacher."""
    shown = Feed((1, 1, 1), (0.4,), (0.2,), False)
    own = Feed((1, 1, 1), (0.2,), (0.5,), False)
    model = nn.Sequential(nn.BatchNorm2d(1, affine=False), nn.Flatten())
    teach = teacher_from(model, None, own, shown)
    assert teach(torch.ones(2, 1, 1, 1)).flatten().tolist() == pytest.approx([0.8, 0.8], rel=1e-4)
    assert model[0].num_batches_tracked == 0
    same = teacher_from(model, None, shown, shown)
    assert same(torch.ones(1, 1, 1, 1)).item() == pytest.approx(1, rel=1e-4)


def test_moving_average() -> None:
    """Weights 1, 2, 4. The first is copied; then the decay is 2/11, and 0.2 for 3/12 is more."""
    average = ema_model(model := nn.BatchNorm1d(1), 0.2)
    for value in (1.0, 2.0, 4.0):
        with torch.no_grad():
            model.weight.fill_(value)
            model.running_mean.fill_(value)
            model.num_batches_tracked.fill_(int(value))
        average.update_parameters(model)
    first = 2 / 11 * 1 + 9 / 11 * 2
    wanted = 0.2 * first + 0.8 * 4
    assert average.module.weight.item() == pytest.approx(wanted)
    assert average.module.running_mean.item() == pytest.approx(wanted)
    assert average.module.num_batches_tracked == 4


def test_clipping() -> None:
    """The gradient of w·x + cross entropy is clipped to norm 0.01: lr 1, no momentum, no decay."""
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)  # so that the gradient is large
    before = model.weight.detach().clone()
    optimizer = sgd(model, 1.0, momentum=0.0, weight_decay=0.0, nesterov=False)
    train(Trainer(model, optimizer, clip=0.01), [(torch.full((4, 1), 9.0), torch.zeros(4).long())])
    assert (model.weight - before).norm().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_learns_the_same(kind: torch.dtype) -> None:
    """bfloat16 has 8 bits: the weights after ten steps agree to about a hundredth."""
    torch.manual_seed(0)
    batches = [(torch.randn(32, 6), torch.randint(3, (32,))) for _ in range(10)]
    weights = []
    for half in (None, kind):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        trainer = Trainer(model, sgd(model, 0.1), half=half)
        assert trainer.scaler.is_enabled() == (half == torch.float16)
        train(trainer, batches)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert weights[0].dtype == weights[1].dtype == torch.float32
    assert not torch.equal(*weights)
    assert torch.allclose(*weights, atol=0.02)
