"""Export to ONNX, and see that ONNX Runtime gives what torch gives."""

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from legr_cli.channels.trace import evaluating
from legr_cli.channels.twins import tensors
from legr_cli.errors import LegrError

OPSET = 18  # the oldest that the exporter writes; runtimes for older boards read it
TOLERANCE = 1e-3  # relative difference that is no rounding any more


def export(model: nn.Module, input_shape: tuple[int, ...], path: Path) -> float:
    """Write `model` for any batch size; the largest relative difference to torch's output."""
    import onnx

    images = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(0))
    with evaluating(model), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        expected = [tensor.numpy() for tensor in tensors(model(images))]
        torch.onnx.export(
            model,
            (images,),
            path,
            dynamo=True,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["logits"] if len(expected) == 1 else None,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,
            verbose=False,
        )
    onnx.checker.check_model(path)
    difference = _difference(expected, _run(path, images.numpy()))
    if not difference <= TOLERANCE:
        raise LegrError(f"{path}: ONNX Runtime differs from torch by {difference:.1e} (relative)")
    return difference


def _run(path: Path, images: np.ndarray) -> list[Any]:
    """What ONNX Runtime gives."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return list(session.run(None, {session.get_inputs()[0].name: images}))


def _difference(expected: list[np.ndarray], found: list[Any]) -> float:
    """The largest difference relative to the largest value."""
    if [e.shape for e in expected] != [f.shape for f in found]:
        return float("inf")
    pairs = zip(expected, found, strict=True)
    return max(float(np.abs(e - f).max() / max(np.abs(e).max(), 1e-30)) for e, f in pairs)
