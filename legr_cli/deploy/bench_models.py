"""The networks that `legr bench` measures, each as an ONNX file in memory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from legr_cli.deploy import core
from legr_cli.errors import BenchError, first_line
from legr_cli.shapes import Shapes

if TYPE_CHECKING:
    from torch import nn

    from legr_cli.models.network import Network


@dataclass(frozen=True)
class BenchModels:
    """The networks to measure, as the user named them, and how to open them."""

    models: tuple[str, ...]  # ratios are relative to the first
    arch: "str | Callable[..., nn.Module] | None" = None
    classes: int | None = None
    input_shape: Shapes | None = None
    in_memory: Mapping[str, "Network"] = field(default_factory=dict)  # modules, by name in `models`
    weights: str | None = None  # key of the state dict, where a file holds several

    def short_names(self) -> dict[str, str]:
        """Map each model to its file name, or to its full name where file names are the same."""
        short = {model: Path(model).name or model for model in self.models}
        names = list(short.values())
        return {m: n if names.count(n) == 1 else m for m, n in short.items()}


def as_onnx(
    models: BenchModels, status: Callable[[str], None]
) -> Iterator[tuple[str, bytes, float | None]]:
    """Yield each model's name, ONNX file and difference to torch (None if it was ONNX already).

    Networks are exported for a batch of one image; `status` is called before each export.
    """
    to_export = []
    for model in models.models:
        if model.endswith(".onnx") and model not in models.in_memory:
            yield model, _read_onnx(Path(model)), None
        else:
            to_export.append(model)
    # A file written by legr records its architecture and input size, which checkpoints lack:
    # open it first and let the others default to them.
    reference = None
    for model in sorted(to_export, key=lambda name: not name.endswith(".safetensors")):
        try:
            from legr_cli.deploy.export import export_bytes
            from legr_cli.models.network import open_network
        except ImportError as error:
            raise BenchError(
                f"{model} must be exported first, which needs {error.name}: pass an .onnx file here"
            ) from error
        status(f"exporting {model}")
        shape = models.input_shape or _default_shape(reference, model)
        arch = None if reference is None else reference.arch
        network = models.in_memory.get(model) or open_network(
            model, models.arch, models.classes, shape, usual=arch, weights=models.weights
        )
        reference = reference or network
        yield model, *export_bytes(network)


def _default_shape(reference: "Network | None", model: str) -> Shapes | None:
    """Input shape for a model that may not record its own: that of the first network opened.

    None, to use the architecture's default, if the model is of another architecture.
    """
    if reference is None or model.endswith(".safetensors"):
        return None
    kind, _, name = model.partition(":")
    names_arch = kind in ("random", "torchvision")
    if names_arch and name.split("@")[0] != str(reference.arch):
        return None
    return reference.input_shape


def _read_onnx(path: Path) -> bytes:
    """Read an ONNX file; weights that it stores in another file are merged into it."""
    try:
        data = path.read_bytes()
        if not core.has_graph(data):
            raise BenchError(f"{path} is not an ONNX file")
        external = core.has_external_data(data)
    except FileNotFoundError:
        raise BenchError(f"{path} does not exist") from None
    except MemoryError:
        raise BenchError(f"{path} is larger than the memory of this machine") from None
    except (IndexError, ValueError, TypeError):
        raise BenchError(f"{path} is not an ONNX file") from None
    return _merge_external_data(path) if external else data


def _merge_external_data(path: Path) -> bytes:
    """Load an ONNX file with the files it stores weights in, as a single file."""
    try:
        import onnx
    except ImportError:
        raise BenchError(
            f"{path} stores its weights in another file, and reading that needs the onnx package: "
            "export it with external_data=False"
        ) from None
    try:
        return bytes(onnx.load(path).SerializeToString())
    except Exception as error:
        raise BenchError(f"{path}: its weights cannot be read: {first_line(error)}") from error
