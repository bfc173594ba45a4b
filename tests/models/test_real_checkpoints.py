"""Laws 1 and 2 on public CIFAR-10 checkpoints, where they are at hand."""

import laws
import pytest
from running import ROOT

from legr_cli.channels import couple
from legr_cli.cost import price
from legr_cli.models.network import open_network

WEIGHTS = ROOT.parent / "shared" / "weights"


@pytest.mark.parametrize("name", ["resnet20", "resnet56"])
@pytest.mark.parametrize("share", [0.2, 0.47, 0.8])
def test_laws(name: str, share: float) -> None:
    path = WEIGHTS / f"{name}-cifar10.th"
    if not path.exists():
        pytest.skip(f"{path.name} is not here (public weights, not part of the project)")
    network = open_network(str(path), name)
    model = network.model.double()
    units = couple(model, network.input_shape)
    cost = price(units)
    kept = laws.plan(units, cost, share)
    assert 0 < kept.sum() < units.count
    laws.law1_dead_channels_change_nothing(units, model, kept)
    laws.law2_pruned_is_dense_silenced(units, model, kept)
    laws.law3_cost_is_fvcores(units, cost, kept)
    laws.law5_under_the_target_and_full(units, cost, kept, share)
