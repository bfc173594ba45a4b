"""`legr_cli.export`: write a network for a runtime, and verify it there.

BatchNorm is not folded into convolutions: ONNX Runtime does that when it loads the file.
"""

import contextlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from legr_cli.channels.id_tensors import tensors
from legr_cli.channels.trace import evaluating
from legr_cli.cost import count_flops, count_params
from legr_cli.deploy.names import file_names
from legr_cli.errors import LegrError, ModelError, OutputError, SettingError, first_line
from legr_cli.files import require_folder, staged
from legr_cli.models.checkpoints import fingerprint
from legr_cli.models.network import Network, as_network, in_single_precision
from legr_cli.progress import Report, Status, silent

OPSET = 18  # the oldest that torch writes; runtimes on older boards read it
OPSETS = (18, 23)  # what torch writes and the runtimes we support read
TOLERANCE = 1e-3  # relative difference that rounding does not explain


@dataclass(frozen=True)
class Exported:
    """A file that was written for a runtime."""

    file: Path
    bytes: int
    difference: float  # largest, relative, between the runtime's output and torch's
    opset: int


def export(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    batch: int | None = None,
    opset: int = OPSET,
    input_shape: Sequence[int] | None = None,
) -> Exported:
    """Write a network as an ONNX file, and check it against torch with ONNX Runtime.

    The file's metadata has an entry `legr`, a JSON object with the input size, FLOPs, parameters
    and, where they are known, how pictures are resized, the mean and standard deviation of each
    channel, and class names.

    Args:
        model: Any module; it is not changed.
        path: The file to write; ends in `.onnx`.
        batch: Images per batch; None leaves it free.
        opset: Version of the ONNX operator set.
        input_shape: Shape of one image, such as `(3, 224, 224)`; a module from legr knows its own.

    Returns:
        The file, its size, and how much its output differs from torch's.

    Raises:
        ModelError: The network does not run on such images, or torch cannot export it.
        OutputError: The file cannot be written.
        SettingError: An argument is out of range.

    Example:
        >>> legr_cli.export(tuned, "robot.onnx", batch=1).difference
        3.1e-07
    """
    target = Path(path)
    if target.suffix not in EXPORTERS or target.is_dir():
        raise OutputError(f"{target}: name a file that ends in {' or '.join(EXPORTERS)}")
    require_folder(target, "path")
    with staged() as files:
        return export_network(
            as_network(model, input_shape), target, files.file(target), batch, opset
        )


def export_files(
    names: Sequence[str],
    opened: Callable[[str], Network],
    out: Path,
    *,
    batch: int | None = None,
    opset: int = OPSET,
    progress: Report = silent,
) -> list[Exported]:
    """Export several networks to a folder, or one to a file; all files appear, or none."""
    files = _outputs_for(names, out)
    written = []
    with staged() as stage:
        if out not in files:
            stage.folder(out)
        for name, path in zip(names, files, strict=True):
            progress(Status(f"exporting {name}"))
            written.append(export_network(opened(name), path, stage.file(path), batch, opset))
    return written


def _outputs_for(names: Sequence[str], out: Path) -> list[Path]:
    """`out` itself for one network, or a file in that folder for each."""
    require_folder(out)
    if out.suffix in EXPORTERS and not out.is_dir():
        if len(names) > 1:
            raise OutputError(
                f"--out {out} is a single file, but there are {len(names)} networks: name a folder"
            )
        return [out]
    if out.exists() and not out.is_dir():
        raise OutputError(f"--out {out} is a file, not a folder: name an .onnx file")
    return [out / name for name in file_names([Path(name).name for name in names])]


def export_network(
    network: Network, path: Path, temporary: Path, batch: int | None = None, opset: int = OPSET
) -> Exported:
    """Export to a file that takes the place of `path` when complete; its suffix decides how."""
    if batch is not None and (type(batch) is not int or not 1 <= batch <= 100_000):
        raise SettingError(f"--batch must be a number of images or free, got {batch}")
    if type(opset) is not int or not OPSETS[0] <= opset <= OPSETS[1]:
        raise SettingError(f"--opset must be from {OPSETS[0]} to {OPSETS[1]}, got {opset}")
    difference = EXPORTERS[path.suffix](network, temporary, batch, opset)
    return Exported(path, temporary.stat().st_size, difference, opset)


def _export_onnx(network: Network, temporary: Path, batch: int | None, opset: int) -> float:
    """Write ONNX; returns the largest relative difference between ONNX Runtime and torch."""
    import onnx

    model, shape = in_single_precision(network.model), network.input_shape
    images = torch.rand(batch or 2, *shape, generator=torch.Generator().manual_seed(0))
    with evaluating(model), torch.no_grad(), _quietly():
        expected = _outputs(network, model, images)
        program = _exported_program(network, model, images, len(expected), batch is None, opset)
    for node in program.model.graph:
        node.metadata_props.clear()  # paths of the machine that it was exported on
    program.model.metadata_props["legr"] = json.dumps(_metadata(network, model))
    program.save(temporary, external_data=False)
    onnx.checker.check_model(temporary)
    difference = _difference(expected, _run(temporary, images.numpy()))
    if not difference <= TOLERANCE:
        raise LegrError(
            f"{network.arch} gives other outputs in ONNX Runtime than in torch: they differ by "
            f"{difference:.1e} (relative); does it draw random numbers?"
        )
    return difference


# By suffix: network, file, batch (None: free) and opset → difference to torch.
EXPORTERS: dict[str, Callable[[Network, Path, int | None, int], float]] = {".onnx": _export_onnx}


def _metadata(network: Network, model: nn.Module) -> dict[str, Any]:
    """What a file says of its network, for those who run or time it."""
    shape, notes = network.input_shape, network.notes
    known: dict[str, Any] = {
        "arch": str(network.arch),
        "input": list(shape),
        "flops": count_flops(model, shape),
        "params": count_params(model),
        "weights_sha256": fingerprint(model),
    }
    statistics = notes.get("statistics")
    if isinstance(statistics, dict):
        known |= {key: statistics[key] for key in ("mean", "std") if key in statistics}
    if isinstance(notes.get("pictures"), dict):
        known["pictures"] = notes["pictures"]
    if isinstance(notes.get("class_names"), list):
        known["classes"] = notes["class_names"]
    return known


def _outputs(network: Network, model: nn.Module, images: torch.Tensor) -> list[np.ndarray]:
    """What torch gives."""
    try:
        return [tensor.numpy() for tensor in tensors(model(images))]
    except Exception as error:
        text = f"{network.arch} does not run on images of {'x'.join(map(str, network.input_shape))}"
        raise ModelError(f"{text} ({first_line(error)}): pass their size with --input") from error


def _exported_program(
    network: Network,
    model: nn.Module,
    images: torch.Tensor,
    outputs: int,
    free_batch: bool,
    opset: int,
) -> Any:
    """torch's own export."""
    try:
        program = torch.onnx.export(
            model,
            (images,),
            dynamo=True,
            opset_version=opset,
            input_names=["images"],
            output_names=["logits"] if outputs == 1 else None,
            dynamic_shapes=({0: torch.export.Dim("batch")},) if free_batch else None,
            verbose=False,
        )
    except Exception as error:
        reason = first_line(error.__cause__ or error)
        raise ModelError(f"torch cannot export {network.arch} to ONNX: {reason}") from error
    assert program is not None
    return program


def exported(network: Network) -> tuple[bytes, float]:
    """A network for one image as the bytes of an ONNX file, and its difference to torch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        found = export_network(network, path, path, batch=1)
        return path.read_bytes(), found.difference


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Hide what the exporter prints, logs and warns about."""
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
    """The largest difference, relative to the largest value."""
    if [e.shape for e in expected] != [f.shape for f in found]:
        return float("inf")
    pairs = zip(expected, found, strict=True)
    return max(float(np.abs(e - f).max() / max(np.abs(e).max(), 1e-30)) for e, f in pairs)
