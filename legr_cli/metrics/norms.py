"""Metrics of the weights alone."""

from torch import Tensor

from legr_cli.channels.flow import Layer
from legr_cli.channels.norms import norm_behind
from legr_cli.channels.slicing import by_filter
from legr_cli.channels.units import Units


def squared_norm(units: Units) -> dict[str, Tensor]:
    """‖Θᵢ‖₂² of each filter."""
    return {name: _norms(layer) for name, layer in units.flow.layers.items()}


def folded_norm(units: Units) -> dict[str, Tensor]:
    """‖Θᵢ · γᵢ / σᵢ‖₂², where a BatchNorm with scale γ and deviation σ follows, else ‖Θᵢ‖₂²."""
    found = {}
    for name, layer in units.flow.layers.items():
        scale = norm_scale(units, name)
        norms = _norms(layer)
        found[name] = norms if scale is None else norms * scale.square().to(norms)
    return found


def norm_scale(units: Units, layer: str) -> Tensor | None:
    """γ / σ of the BatchNorm that alone reads a layer's output; None if there is none."""
    norm = norm_behind(units.flow, layer)
    if norm is None or norm.running_var is None:
        return None
    deviation = (norm.running_var.detach().double() + norm.eps).sqrt()
    return 1 / deviation if norm.weight is None else norm.weight.detach().double() / deviation


def _norms(layer: Layer) -> Tensor:
    """The squared norm of each row of a layer's weights."""
    rows = by_filter(layer.weight.detach(), layer.axes).reshape(len(layer.out), -1)
    return rows.double().square().sum(1)
