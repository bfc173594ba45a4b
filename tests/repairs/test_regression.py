"""Ridge regression against its definition."""

import pytest
import torch

from legr_cli.repairs.regression import RIDGES, Regression


def rows(count: int, groups: int = 3, unknowns: int = 5, channels: int = 2) -> tuple:
    generator = torch.Generator().manual_seed(count)
    x, r = (
        torch.randn(count, groups, width, generator=generator, dtype=torch.double) + 1
        for width in (unknowns, channels)
    )
    return x, r


def loss(x, r, delta, shift, weight) -> torch.Tensor:
    """What the solution minimizes, summed over groups."""
    error = r - torch.einsum("rgu,guc->rgc", x, delta) - shift
    return error.square().sum() + (weight[:, None, None] * delta.square()).sum()


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("centred", [False, True])
def test_the_gradient_vanishes_at_the_solution(few: bool, centred: bool) -> None:
    x, r = rows(40)
    regression = Regression(centred, few)
    for part in range(0, 40, 9):
        held = torch.arange(len(x[part : part + 9])) % 4 == 1
        regression.add(x[part : part + 9], r[part : part + 9], held)
    delta, shift = (t.requires_grad_() for t in regression.solve(0.1))
    spread = x - x.mean(0) if centred else x
    weight = 0.1 * spread.square().sum(0).mean(1)
    loss(x, r, delta, shift, weight).backward()
    assert regression.count == 40
    assert float(delta.grad.abs().max()) < 1e-6
    if centred:
        assert float(shift.grad.abs().max()) < 1e-6
    else:
        assert not shift.any()


def test_fewer_rows_than_unknowns() -> None:
    """Both ways of solving agree where both are possible."""
    x, r = rows(4)
    found = []
    for few in (False, True):
        regression = Regression(True, few)
        regression.add(x, r, torch.arange(4) == 2)
        found.append(regression.solve(1e-3))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-9)


def test_an_input_that_is_always_zero_changes_nothing() -> None:
    regression = Regression(True, False)
    regression.add(torch.zeros(20, 1, 3), torch.ones(20, 1, 2), torch.arange(20) > 15)
    delta, shift = regression.solve(0.01)
    assert not delta.any()
    assert torch.allclose(shift, torch.ones(1, 2, dtype=torch.double))


@pytest.mark.parametrize("few", [False, True])
def test_the_ridge_is_chosen_by_the_rows_held_out(few: bool) -> None:
    """Where r follows x, the smallest is best; where it is noise, the largest."""
    x, noise = rows(30, groups=2)
    x = x - 1
    r = torch.stack([x[:, 0] @ torch.tensor([[3.0, 1.0]] * 5).double(), noise[:, 1] - 1], 1)
    held = torch.arange(30) % 3 == 0
    found = Regression(centred=False, few=few)
    found.add(x, r, held)
    chosen = found.solve()[0]
    for group, ridge in enumerate((min(RIDGES), max(RIDGES))):
        fixed = Regression(centred=False, few=few)
        fixed.add(x, r, held)
        assert torch.allclose(chosen[group], fixed.solve(ridge)[0][group])
