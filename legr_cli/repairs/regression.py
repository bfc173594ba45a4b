"""Ridge regression from rows that arrive in chunks."""

import torch
from torch import Tensor


class Regression:
    """Δ = argmin Σ ‖r − x·Δ − c‖² + ridge · mean(diag XᵀX) · ‖Δ‖², for each group by itself.

    With `centred` the constant c is free (a bias), else it is 0. With `few` rows (fewer than
    unknowns) the rows are kept and the dual problem is solved, else only sums of products are.
    """

    def __init__(self, centred: bool, few: bool) -> None:
        self.centred, self.few = centred, few
        self.count = 0
        self._rows: list[tuple[Tensor, Tensor]] = []
        self._inputs: dict[str, Tensor] = {}  # sums over x
        self._outputs: dict[str, Tensor] = {}  # sums that r is in
        self._origin: list[Tensor] = []  # close to the means of x and r
        self._inputs_known = False

    def restart(self) -> None:
        """Forget r, to solve again for other values at the same rows, which must be added again."""
        self.count, self._rows, self._outputs = 0, [], {}
        self._origin, self._inputs_known = self._origin[:1], True

    def add(self, x: Tensor, r: Tensor) -> None:
        """Add rows × groups × unknowns and rows × groups × channels."""
        self.count += len(x)
        x, r = x.transpose(0, 1), r.transpose(0, 1)  # groups first
        if self.few:
            self._rows.append((x, r))
            return
        if self.centred:  # sums around the mean keep their digits where it is large
            self._origin += [t.mean(1, keepdim=True) for t in (x, r)[len(self._origin) :]]
            x, r = x - self._origin[0], r - self._origin[1]
        _accumulate(self._outputs, {"xr": x.mT @ r, "r": r.sum(1, keepdim=True)})
        if not self._inputs_known:
            _accumulate(self._inputs, {"xx": x.mT @ x, "x": x.sum(1, keepdim=True)})

    @property
    def finite(self) -> bool:
        """Whether all rows so far are finite numbers."""
        sums = [*self._inputs.values(), *self._outputs.values()]
        parts = [t for pair in self._rows for t in pair] or sums
        return all(bool(part.isfinite().all()) for part in parts)

    def solve(self, ridge: float) -> tuple[Tensor, Tensor]:
        """Δ as groups × unknowns × channels, and c as groups × channels."""
        return self._solve_dual(ridge) if self.few else self._solve_primal(ridge)

    def _solve_primal(self, ridge: float) -> tuple[Tensor, Tensor]:
        """(XᵀX + λ)⁻¹ Xᵀr."""
        xx, xr = self._inputs["xx"], self._outputs["xr"]
        x, r = self._inputs["x"] / self.count, self._outputs["r"] / self.count
        if self.centred:
            xx, xr = xx - self.count * x.mT @ x, xr - self.count * x.mT @ r
        diagonal = xx.diagonal(dim1=1, dim2=2)
        delta = _solve_positive(xx, ridge * diagonal.mean(1), xr)
        if self._origin:
            x, r = x + self._origin[0], r + self._origin[1]
        return delta, (r - x @ delta)[:, 0] * self.centred

    def _solve_dual(self, ridge: float) -> tuple[Tensor, Tensor]:
        """Xᵀ (XXᵀ + λ)⁻¹ r: the same Δ from a system with one row for each row."""
        x, r = (torch.cat(parts, 1).double() for parts in zip(*self._rows, strict=True))
        mean_x, mean_r = x.mean(1, keepdim=True), r.mean(1, keepdim=True)
        if self.centred:
            x, r = x - mean_x, r - mean_r
        weight = ridge * x.square().sum(1).mean(1)
        delta = x.mT @ _solve_positive(x @ x.mT, weight, r)
        return delta, (mean_r - mean_x @ delta)[:, 0] * self.centred


def _accumulate(sums: dict[str, Tensor], new: dict[str, Tensor]) -> None:
    """Add to sums: products in the type of the rows, sums of them in double precision."""
    for name, part in new.items():
        sums[name] = sums[name].add_(part) if name in sums else part.double()


def _solve_positive(matrix: Tensor, weight: Tensor, right: Tensor) -> Tensor:
    """(matrix + weight · 1)⁻¹ right by Cholesky; a larger weight where rounding makes it fail."""
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    weight = weight.clamp(min=torch.finfo(matrix.dtype).tiny)[:, None, None]
    while True:
        factor, failed = torch.linalg.cholesky_ex(matrix + weight * identity)
        if not failed.any():
            return torch.cholesky_solve(right, factor)
        weight = torch.where(failed[:, None, None] > 0, weight * 10, weight)
