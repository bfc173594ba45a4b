"""Whether an ONNX file computes in ONNX Runtime what its network computes in torch."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from legr_cli.channels.check import relative_difference
from legr_cli.channels.inputs import Call
from legr_cli.channels.structures import tensors
from legr_cli.channels.switches import evaluating
from legr_cli.errors import LegrError, ModelError, first_line
from legr_cli.models.network import own_copy

TOLERANCE = 1e-3  # relative; rounding alone stays well below in most networks
ROUNDING = 10  # how many times as far from double precision as torch ONNX Runtime may be


def verified(
    arch: str, model: nn.Module, call: Call, expected: list[torch.Tensor], file: Path
) -> float | None:
    """The largest relative difference between ONNX Runtime and torch; None for random outputs.

    Raises LegrError if it is more than rounding.
    """
    actual = _run(arch, file, call)
    difference = largest_difference(expected, actual)
    if difference <= TOLERANCE:
        return difference
    if _draws_random_numbers(model, call):
        return None
    exact = _outputs(own_copy(model).double(), _in_double_precision(call))
    if not largest_difference(exact, actual) <= ROUNDING * largest_difference(exact, expected):
        raise LegrError(
            f"{arch} has a different output in ONNX Runtime than in torch (relative difference "
            f"{difference:.1e}), and rounding does not explain it; try another --opset"
        )
    return difference


def largest_difference(expected: list[torch.Tensor], actual: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest expected value; infinite if shapes differ."""
    if [e.shape for e in expected] != [a.shape for a in actual]:
        return float("inf")
    return max(relative_difference(e, a) for e, a in zip(expected, actual, strict=True))


def _run(arch: str, file: Path, call: Call) -> list[torch.Tensor]:
    """The outputs of the network in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised as well
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        # the exporter drops inputs that no output depends on
        feed = {i.name: x.numpy() for i, x in zip(session.get_inputs(), call.tensors, strict=False)}
        outputs: list[Any] = session.run(None, feed)
    except Exception as error:
        raise ModelError(
            f"{arch} was exported, but ONNX Runtime cannot run it ({first_line(error)}); try "
            "another --opset, or a newer onnxruntime"
        ) from error
    return [torch.as_tensor(output) for output in outputs]


def _draws_random_numbers(model: nn.Module, call: Call) -> bool:
    """Whether the network's outputs differ from run to run."""
    runs = []
    for seed in (0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            runs.append(_outputs(model, call))
    return any(not torch.equal(a, b) for a, b in zip(*runs, strict=True))


def _outputs(model: nn.Module, call: Call) -> list[torch.Tensor]:
    """The outputs of the network in torch."""
    with evaluating(model):
        return tensors(call.run(model))


def _in_double_precision(call: Call) -> Call:
    """The same call with doubles instead of floats."""
    return call.like(torch.zeros((), dtype=torch.float64))
