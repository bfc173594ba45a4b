"""Export to ONNX, and see that ONNX Runtime gives what torch gives.

BatchNorm stays as it is in the file: the runtime folds it into the convolution before it.
"""

import contextlib
import copy
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from legr_cli.channels.id_tensors import tensors
from legr_cli.channels.trace import evaluating
from legr_cli.cost import count_flops, count_params
from legr_cli.errors import LegrError, ModelError, first_line
from legr_cli.models.checkpoints import fingerprint
from legr_cli.models.network import Network

OPSET = 18  # the oldest that the exporter writes; runtimes for older boards read it
TOLERANCE = 1e-3  # relative difference that is no rounding any more


def export(network: Network, path: Path, batch: int | None = None) -> float:
    """Write a network, for `batch` images or for any number of them.

    FLOPs, parameters and what the network is go along, for those who time it. Returns the largest
    relative difference between ONNX Runtime's output and torch's.
    """
    import onnx

    model, shape = _in_single_precision(network.model), network.input_shape
    with evaluating(model), torch.no_grad(), _quietly():
        try:
            images = torch.rand(batch or 2, *shape, generator=torch.Generator().manual_seed(0))
            expected = [tensor.numpy() for tensor in tensors(model(images))]
        except Exception as error:
            text = f"{network.arch} does not run on images of {'x'.join(map(str, shape))}"
            raise ModelError(
                f"{text} ({first_line(error)}): pass their size with --input"
            ) from error
        try:
            program = torch.onnx.export(
                model,
                (images,),
                dynamo=True,
                opset_version=OPSET,
                input_names=["images"],
                output_names=["logits"] if len(expected) == 1 else None,
                dynamic_shapes=None if batch else ({0: torch.export.Dim("batch")},),
                verbose=False,
            )
        except Exception as error:
            reason = first_line(error.__cause__ or error)
            raise ModelError(f"torch cannot export {network.arch} to ONNX: {reason}") from error
    assert program is not None
    for node in program.model.graph:
        node.metadata_props.clear()  # paths of the machine that it was exported on
    notes = {
        "arch": str(network.arch),
        "input": list(shape),
        "flops": count_flops(model, shape),
        "params": count_params(model),
        "weights_sha256": fingerprint(model),
    }
    program.model.metadata_props["legr"] = json.dumps(notes)
    program.save(path, external_data=False)
    onnx.checker.check_model(path)
    difference = _difference(expected, _run(path, images.numpy()))
    if not difference <= TOLERANCE:
        raise LegrError(
            f"{network.arch} gives something else in ONNX Runtime than in torch: they differ by "
            f"{difference:.1e} (relative); does it draw random numbers?"
        )
    return difference


def _in_single_precision(model: nn.Module) -> nn.Module:
    """The network in the precision that is exported; a copy, if it is in another."""
    if all(p.dtype == torch.float32 for p in model.parameters()):
        return model
    return copy.deepcopy(model).float()


def exported(network: Network) -> tuple[bytes, float]:
    """A network for one image as the bytes of an ONNX file, and its difference to torch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        difference = export(network, path, batch=1)
        return path.read_bytes(), difference


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without what the exporter prints, logs and warns of."""
    sink = io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
    ):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        yield


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
