"""Ridge regression against its definition."""

import pytest
import torch

from legr_cli.repairs.regression import Regression


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
        regression.add(x[part : part + 9], r[part : part + 9])
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
        regression.add(x, r)
        found.append(regression.solve(1e-3))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-9)


def test_an_input_that_is_always_zero_changes_nothing() -> None:
    regression = Regression(True, False)
    regression.add(torch.zeros(20, 1, 3), torch.ones(20, 1, 2))
    delta, shift = regression.solve(0.01)
    assert not delta.any()
    assert torch.allclose(shift, torch.ones(1, 2, dtype=torch.double))
