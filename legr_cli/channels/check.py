"""Is a pruned network right? The dense one, with the removed channels silenced, must agree."""

from typing import Any

import torch
from torch import fx, nn

from legr_cli.channels.trace import evaluating
from legr_cli.channels.units import Kept, Units


def silenced(units: Units, kept: Kept, images: torch.Tensor) -> Any:
    """dense(x) with the removed channels set to zero where layers read them."""
    flow = units.flow
    modules = dict(flow.traced.named_modules())

    class Silencer(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            name = str(n.target) if n.op == "call_module" else _weight_name(n)
            if name not in flow.layers:
                return super().run_node(n)
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            mask = torch.from_numpy(units.keeps(kept, flow.layers[name].into))
            x = args[0] if args else kwargs["input"]
            linear = flow.layers[name].kind == "linear"
            view = [-1 if d == (x.ndim - 1 if linear else 1) else 1 for d in range(x.ndim)]
            x = torch.where(mask.to(x.device).reshape(view), x, x.new_zeros(()))
            if args:
                return getattr(self, n.op)(n.target, (x, *args[1:]), kwargs)
            return getattr(self, n.op)(n.target, args, {**kwargs, "input": x})

    assert modules
    with evaluating(flow.traced):
        return Silencer(flow.traced).run(images)


def _weight_name(node: fx.Node) -> str:
    """The name of a functional layer: its weight's."""
    weight = node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")
    return str(weight.target) if isinstance(weight, fx.Node) and weight.op == "get_attr" else ""


def disagreement(units: Units, kept: Kept, smaller: nn.Module) -> float:
    """Largest difference between `smaller` and the silenced dense network, relative to it."""
    generator = torch.Generator().manual_seed(0)
    tensor = next(units.flow.traced.parameters())
    images = torch.rand(1, *units.input_shape, generator=generator).to(tensor)
    expected = _tensors(silenced(units, kept, images))
    with evaluating(smaller):
        found = _tensors(smaller(images))
    if [t.shape for t in expected] != [t.shape for t in found]:
        return float("inf")
    worst = 0.0
    for a, b in zip(expected, found, strict=True):
        scale = float(a.abs().max())
        worst = max(worst, float((a - b).abs().max()) / (scale if scale > 0 else 1.0))
    return worst


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in what a network gives."""
    from legr_cli.channels.flow import tensors

    return tensors(value)
