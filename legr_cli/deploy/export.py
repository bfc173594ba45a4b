"""`legr_cli.export`: networks → ONNX files, verified against torch in ONNX Runtime.

BatchNorm is not folded into convolutions: ONNX Runtime does that when it loads a file.
"""

import contextlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from legr_cli.arguments import as_path
from legr_cli.channels.inputs import Call, Source
from legr_cli.channels.structures import parts, tensors
from legr_cli.channels.switches import evaluating, unchanged
from legr_cli.cost import TensorsOnly, count_flops, count_params
from legr_cli.deploy.names import file_names
from legr_cli.deploy.pads import keep_pads_before_pools
from legr_cli.deploy.part import part_of
from legr_cli.deploy.verify import verified
from legr_cli.errors import ModelError, OutputError, SettingError, first_line
from legr_cli.files import is_one_file, require_folder, staged
from legr_cli.models.checkpoints import fingerprint
from legr_cli.models.network import Network, as_network, in_single_precision
from legr_cli.progress import Report, Status, silent
from legr_cli.shapes import Shapes, shapes_json, shapes_text

OPSET = 18  # the oldest that torch writes; runtimes on old boards support it
OPSETS = (18, 23)  # oldest and newest that torch writes and our oldest runtime supports


@dataclass(frozen=True)
class Exported:
    """An exported file."""

    file: Path
    bytes: int
    # The largest between the runtime's output and torch's, relative; None if the network draws
    # random numbers, so that no two outputs are alike.
    difference: float | None
    opset: int


def export(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    batch: int | None = None,
    opset: int = OPSET,
    input_shape: Sequence[int] | Shapes | None = None,
    module: str | None = None,
) -> Exported:
    """Export a network to ONNX, and compare its output in ONNX Runtime with torch's.

    The entry `legr` of the file's metadata is a JSON object with the input shape, FLOPs, parameters
    and, if known, how pictures are resized, the mean and standard deviation of each channel and the
    class names.

    Args:
        model: Any module; it is not changed.
        path: The file to write; ends in `.onnx`.
        batch: Fixed batch size; None: any batch size.
        opset: Version of the ONNX operator set.
        input_shape: Shape of one image, such as `(3, 224, 224)`, or that of each input by name;
            modules from legr record theirs.
        module: Export only this part of the network, such as `"backbone"`.

    Returns:
        The file, its size, and the difference between its output and torch's (None if the network
        draws random numbers in evaluation mode).

    Raises:
        ModelError: The network does not run on this input shape, or torch cannot export it.
        OutputError: The file cannot be written.
        SettingError: An argument is out of range.

    Example:
        >>> legr_cli.export(tuned, "robot.onnx", batch=1).difference
        3.1e-07
    """
    target = as_path(path, "path")
    if target.suffix not in EXPORTERS or target.is_dir():
        raise OutputError(f"{target}: name a file that ends in {' or '.join(EXPORTERS)}")
    require_folder(target, "path")
    with staged() as files:
        network = as_network(model, input_shape)
        part = network if module is None else part_of(network, module)
        return export_network(part, target, files.file(target), batch, opset)


def export_files(
    names: Sequence[str],
    open_model: Callable[[str], Network],
    out: Path,
    *,
    batch: int | None = None,
    opset: int = OPSET,
    module: str | None = None,
    progress: Report = silent,
) -> list[Exported]:
    """Export networks to a folder, or one network to a file; on failure, nothing is written."""
    files = _outputs_for(names, out)
    written = []
    with staged() as stage:
        if out not in files:
            stage.folder(out)
        for name, path in zip(names, files, strict=True):
            progress(Status(f"exporting {name}"))
            network = open_model(name)
            part = network if module is None else part_of(network, module)
            written.append(export_network(part, path, stage.file(path), batch, opset))
    return written


def _outputs_for(names: Sequence[str], out: Path) -> list[Path]:
    """The file to write for each network: `out` itself, or one in the folder `out` for each."""
    require_folder(out)
    if is_one_file(out, list(EXPORTERS), len(names), "networks"):
        return [out]
    return [out / name for name in file_names([Path(name).name for name in names])]


def export_network(
    network: Network, path: Path, temporary: Path, batch: int | None = None, opset: int = OPSET
) -> Exported:
    """Export to `temporary`, in the format of `path`, which it replaces once it is complete."""
    if batch is not None and (type(batch) is not int or not 1 <= batch <= 100_000):
        raise SettingError(f"--batch must be a number of images or free, got {batch}")
    if type(opset) is not int or not OPSETS[0] <= opset <= OPSETS[1]:
        raise SettingError(f"--opset must be from {OPSETS[0]} to {OPSETS[1]}, got {opset}")
    difference = EXPORTERS[path.suffix](network, temporary, batch, opset)
    return Exported(path, temporary.stat().st_size, difference, opset)


def _export_onnx(network: Network, temporary: Path, batch: int | None, opset: int) -> float | None:
    """Write an ONNX file; return the relative difference between ONNX Runtime and torch."""
    import onnx

    model = in_single_precision(network.model)
    call = Source(model, network.input_shape).call(batch or 2)
    with unchanged(model), evaluating(model), _quietly():
        output = _output(network, model, call)
        program = _exported_program(network, model, call, output, batch is None, opset)
    for node in program.model.graph:
        node.metadata_props.clear()  # stack traces, with paths of this machine
    keep_pads_before_pools(program.model.graph)
    program.model.metadata_props["legr"] = json.dumps(_metadata(network, model))
    program.save(temporary, external_data=False)
    try:
        onnx.checker.check_model(temporary)
    except onnx.checker.ValidationError as error:
        raise ModelError(
            f"torch exports {network.arch} to ONNX that is not valid ({first_line(error)}); a "
            f"newer --opset, up to {OPSETS[1]}, may have the op"
        ) from error
    with unchanged(model):
        return verified(str(network.arch), model, call, tensors(output), temporary)


# By suffix: network, file, batch size (None: any) and opset → relative difference to torch
# (None if the network draws random numbers).
EXPORTERS: dict[str, Callable[[Network, Path, int | None, int], float | None]] = {
    ".onnx": _export_onnx
}


def _metadata(network: Network, model: nn.Module) -> dict[str, Any]:
    """The metadata of a file: what programs need to run the network or to report on it."""
    shape, notes = network.input_shape, network.notes
    metadata: dict[str, Any] = {
        "arch": str(network.arch),
        "input": shapes_json(shape),
        "flops": count_flops(model, shape),
        "params": count_params(model),
        "weights_sha256": fingerprint(model),
    }
    statistics = notes.get("statistics")
    if isinstance(statistics, dict):
        metadata |= {key: statistics[key] for key in ("mean", "std") if key in statistics}
    if isinstance(notes.get("pictures"), dict):
        metadata["pictures"] = notes["pictures"]
    if isinstance(notes.get("class_names"), list):
        metadata["classes"] = notes["class_names"]
    return metadata


def _output(network: Network, model: nn.Module, call: Call) -> Any:
    """The output of the network in torch."""
    try:
        return call.run(model)
    except Exception as error:
        raise ModelError(
            f"{network.arch} does not run on an input of {shapes_text(network.input_shape)} "
            f"({first_line(error)}): pass its size with --input"
        ) from error


def _exported_program(
    network: Network, model: nn.Module, call: Call, output: Any, free_batch: bool, opset: int
) -> Any:
    """Export with `torch.onnx.export`."""
    shape, inputs = network.input_shape, call.tensors
    names = list(shape) if isinstance(shape, Mapping) else ["images"]
    batches: Any = tuple({0: torch.export.Dim("batch")} for _ in inputs)
    starred = any(name.startswith("*") for name in call.named(model))
    if isinstance(shape, Mapping) or starred or not _is_plain(output):
        model, batches = TensorsOnly(model, call), (batches,)  # it takes `*inputs`
    try:
        program = torch.onnx.export(
            model,
            tuple(inputs),
            dynamo=True,
            opset_version=opset,
            input_names=names,
            output_names=["logits"] if len(tensors(output)) == 1 else None,
            dynamic_shapes=batches if free_batch else None,
            verbose=False,
        )
    except Exception as error:
        reason = first_line(error.__cause__ or error)
        part = network.module and (
            f"; legr export --module {network.module} exports the pruned part alone"
        )
        raise ModelError(f"torch cannot export {network.arch} to ONNX: {reason}{part}") from error
    assert program is not None
    return program


def _is_plain(output: Any) -> bool:
    """Whether an output is a tensor, or tuples, lists and dicts of nothing but tensors."""
    if isinstance(output, tuple | list | dict):
        return all(_is_plain(part) for part, _, _ in parts(output))
    return isinstance(output, torch.Tensor)


def export_bytes(network: Network) -> tuple[bytes, float | None]:
    """Export for a batch of one image; return the ONNX file and its difference to torch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        exported = export_network(network, path, path, batch=1)
        return path.read_bytes(), exported.difference


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silence the exporter's output, logging and warnings."""
    sink = io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
    ):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        yield
