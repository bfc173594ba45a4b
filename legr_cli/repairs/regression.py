"""Ridge regression from rows that arrive in chunks; the ridge is given, or chosen by a hold-out."""

import torch
import torch.nn.functional as F
from torch import Tensor

RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # to choose from


class Regression:
    """Δ = argmin Σ ‖r − x·Δ − c‖² + ridge · mean(diag XᵀX) · ‖Δ‖², for each group by itself.

    With `centred` the constant c is free (a bias) and X is centred, else c is 0. With `few` rows
    (fewer than unknowns) the rows are kept and the dual problem is solved, else only sums of
    products are.
    """

    def __init__(self, centred: bool, few: bool) -> None:
        self.centred, self.few = centred, few
        self.count = 0
        self._parts = (_Rows(), _Rows()) if few else (_Sums(), _Sums())  # to fit, to check
        self._origin: tuple[Tensor, Tensor] | None = None  # close to the means of x and r

    def add(self, x: Tensor, r: Tensor, checks: Tensor) -> None:
        """Add rows × groups × unknowns and rows × groups × channels.

        `checks` marks the rows that are held out while the ridge is chosen.
        """
        self.count += len(x)
        if self.centred:  # numbers around their mean keep their digits where it is large
            self._origin = self._origin or (x.mean(0, keepdim=True), r.mean(0, keepdim=True))
            x, r = x - self._origin[0], r - self._origin[1]
            x = torch.cat([x, x.new_ones(*x.shape[:2], 1)], 2)  # c is the weight of a constant 1
        x, r = x.transpose(0, 1), r.transpose(0, 1)  # groups first
        for part, chosen in zip(self._parts, (~checks, checks), strict=True):
            if bool(chosen.all()):
                part.add(x, r)
            elif bool(chosen.any()):
                part.add(x[:, chosen], r[:, chosen])

    @property
    def finite(self) -> bool:
        """Whether all rows so far are finite numbers."""
        return all(bool(t.isfinite().all()) for part in self._parts for t in part.tensors)

    def solve(self, ridge: float | None = None) -> tuple[Tensor, Tensor]:
        """Δ as groups × unknowns × channels, and c as groups × channels.

        Without a `ridge`, every group gets the one of `RIDGES` that does best on the rows held out.
        """
        fit, check = self._parts
        chosen = self._best(fit, check) if ridge is None else torch.tensor(ridge)
        delta = (fit + check).solve(chosen, self.centred)
        if self._origin is None:
            return delta, delta.new_zeros(len(delta), delta.shape[2])
        delta, shift = delta[:, :-1], delta[:, -1:]
        x, r = (origin.transpose(0, 1) for origin in self._origin)
        return delta, (shift + r - x.to(delta) @ delta)[:, 0]

    def _best(self, fit: "_Sums", check: "_Sums") -> Tensor:
        """The best ridge for each group; the middle one if there is nothing to judge by."""
        ridges = torch.tensor(RIDGES, dtype=torch.double)
        if not fit.tensors or not check.tensors:
            return ridges[len(ridges) // 2]
        errors = [check.error(fit.solve(ridge, self.centred)) for ridge in ridges]
        return ridges[torch.stack(errors).argmin(0)]


class _Sums:
    """XᵀX and XᵀR of rows, by group, in double precision."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def add(self, x: Tensor, r: Tensor) -> None:
        """Add rows, by group."""
        new = x.mT @ x, x.mT @ r
        if self.tensors:
            for total, part in zip(self.tensors, new, strict=True):
                total += part
        else:
            self.tensors = tuple(part.double() for part in new)

    def __add__(self, other: "_Sums") -> "_Sums":
        if not (self.tensors and other.tensors):
            return self if self.tensors else other
        return _Sums(*(a + b for a, b in zip(self.tensors, other.tensors, strict=True)))

    def solve(self, ridge: Tensor, centred: bool) -> Tensor:
        """(XᵀX + λ)⁻¹ XᵀR; the last unknown is the constant where there is one."""
        xx, xr = self.tensors
        squares = xx.diagonal(dim1=1, dim2=2)
        if centred:  # xx[:, -1] is Σx, and ends with the number of rows
            squares = squares[:, :-1] - xx[:, -1, :-1].square() / xx[:, -1, -1:]
        weight = _ridge(squares, ridge).expand(squares.shape)
        weight = F.pad(weight, (0, 1)) if centred else weight
        return _solve_positive(xx + weight.diag_embed(), xr)

    def error(self, delta: Tensor) -> Tensor:
        """By group, Σ ‖r − x·Δ‖² without the part that does not depend on Δ."""
        xx, xr = self.tensors
        return (delta * (xx @ delta - 2 * xr)).sum((1, 2))


class _Rows(_Sums):
    """The rows themselves: fewer than unknowns."""

    def add(self, x: Tensor, r: Tensor) -> None:
        """Add rows, by group."""
        new = x.double(), r.double()
        pairs = zip(self.tensors, new, strict=True) if self.tensors else ()
        self.tensors = tuple(torch.cat(pair, 1) for pair in pairs) or new

    def __add__(self, other: _Sums) -> "_Rows":
        if not (self.tensors and other.tensors):
            return self if isinstance(other, _Rows) and self.tensors else other
        pairs = zip(self.tensors, other.tensors, strict=True)
        return _Rows(*(torch.cat(pair, 1) for pair in pairs))

    def solve(self, ridge: Tensor, centred: bool) -> Tensor:
        """Xᵀ (XXᵀ + λ)⁻¹ R: the same Δ from a system with one row for each row."""
        x, r = self.tensors
        if not centred:
            return _solve_dual(x, r, ridge)
        x = x[:, :, :-1]  # without the constant
        mean_x, mean_r = x.mean(1, keepdim=True), r.mean(1, keepdim=True)
        delta = _solve_dual(x - mean_x, r - mean_r, ridge)
        return torch.cat([delta, mean_r - mean_x @ delta], 1)

    def error(self, delta: Tensor) -> Tensor:
        """By group, Σ ‖r − x·Δ‖²."""
        x, r = self.tensors
        return (r - x @ delta).square().sum((1, 2))


def _ridge(squares: Tensor, ridge: Tensor) -> Tensor:
    """λ by group, from the diagonal of XᵀX; never quite 0, for inputs that are always 0."""
    return ridge.reshape(-1, 1) * squares.mean(1, keepdim=True).clamp(min=1e-300)


def _solve_dual(x: Tensor, r: Tensor, ridge: Tensor) -> Tensor:
    """Xᵀ (XXᵀ + λ)⁻¹ R."""
    weight = _ridge(x.square().sum(1), ridge).expand(x.shape[:2])
    return x.mT @ _solve_positive(x @ x.mT + weight.diag_embed(), r)


def _solve_positive(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve by Cholesky; with a little more on the diagonal where rounding makes it fail."""
    extra = 1e-12
    while True:
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if not failed.any():
            return torch.cholesky_solve(right, factor)
        diagonal = matrix.diagonal(dim1=1, dim2=2)
        matrix = matrix + (extra * diagonal.mean(1, keepdim=True).expand_as(diagonal)).diag_embed()
        extra *= 10
