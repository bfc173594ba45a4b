"""Read and write weights files. Pickles are only read with `weights_only=True`."""

import argparse
import contextlib
import hashlib
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from legr_cli.errors import CheckpointError, ModelError, OutputError, first_line
from legr_cli.models.registry import TRAINING_ONLY, Arch, known_names, parse_arch

PICKLED = (".pt", ".pth", ".th", ".t7", ".tar")
SAFE = ".safetensors"
_WRAPPERS = ("state_dict", "model", "net", "model_state_dict")
_PREFIXES = ("module.", "_orig_mod.")
_INERT: list[Any] = [  # harmless types that training scripts often save with the weights
    argparse.Namespace,
    np.dtype,
    np.float64(0).__reduce__()[0],  # the function that unpickles NumPy scalars
    *(type(np.dtype(kind)) for kind in ("f2", "f4", "f8", "i4", "i8", "?")),
]

StateDict = dict[str, torch.Tensor]


def read_weights(path: Path) -> tuple[StateDict, dict[str, str]]:
    """Read the tensors of a file and the metadata in its header (a pickle has none)."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a directory: name a weights file in it")
    if not path.exists():
        name = parse_arch(str(path)).name
        known = name in known_names() or name.startswith("timm:")
        hint = f"; for randomly initialized weights pass random:{path}" if known else ""
        raise CheckpointError(
            f"{path} does not exist; a CHECKPOINT is a file, torchvision:NAME or random:NAME{hint}"
        )
    if path.suffix == SAFE:
        return read_safetensors(path)
    if path.suffix in PICKLED:
        return _read_pickle(path), {}
    raise CheckpointError(f"{path}: unknown suffix; legr reads {', '.join((SAFE, *PICKLED))}")


@contextlib.contextmanager
def _open_safetensors(path: Path) -> Iterator[Any]:
    """Open a .safetensors file; the library validates its header."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (
        SafetensorError,
        OSError,
        ValueError,
        RuntimeError,
        OverflowError,
        MemoryError,
    ) as error:
        raise CheckpointError(
            f"{path} is not a valid safetensors file: {first_line(error)}"
        ) from error


def read_safetensors(path: Path) -> tuple[StateDict, dict[str, str]]:
    """Read the tensors and metadata of a .safetensors file."""
    with _open_safetensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def read_header(path: Path) -> dict[str, str]:
    """Read the metadata of a .safetensors file, without its tensors."""
    with _open_safetensors(path) as file:
        return dict(file.metadata() or {})


def write_weights(weights: StateDict, notes: dict[str, str], temporary: Path) -> None:
    """Write a .safetensors file under a temporary name."""
    tensors: StateDict = {}
    seen: set[int] = set()
    for name, tensor in weights.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        shared = storage.data_ptr() in seen or storage.nbytes() != tensor.nbytes
        tensors[name] = tensor.clone() if shared else tensor  # safetensors refuses shared storage
        seen.add(storage.data_ptr())
    try:
        save_file(tensors, temporary, notes)  # one note at most: the order of two would vary
    except SafetensorError as error:
        raise OutputError(
            f"cannot write {temporary.parent}: {first_line(error)}; nothing was changed"
        ) from error


def _read_pickle(path: Path) -> StateDict:
    """Read the state dict in a `torch.save` file without running code from it."""
    try:
        with torch.serialization.safe_globals(_INERT), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        _, asked, culprit = str(error).partition("GLOBAL ")
        what = (
            f"holds pickled objects ({culprit.split(' ')[0]})"
            if asked
            else "is damaged or an unsafe pickle"
        )
        raise CheckpointError(
            f"{path} {what}; legr only reads tensors: save model.state_dict() with torch.save"
        ) from error
    except Exception as error:  # torch.load raises many types of errors on foreign files
        raise CheckpointError(
            f"{path} is damaged or not a weights file: {first_line(error)}"
        ) from error
    return _unwrap(path, content)


def _unwrap(path: Path, content: Any) -> StateDict:
    """Unwrap dicts such as `{"state_dict": …}` and strip prefixes such as `module.`."""
    for _ in _WRAPPERS:
        inner = (
            next((content[k] for k in _WRAPPERS if k in content), None)
            if isinstance(content, dict)
            else None
        )
        if not isinstance(inner, dict):
            break
        content = inner
    if not isinstance(content, dict) or not content:
        raise CheckpointError(f"{path} contains no state dict: save model.state_dict()")
    if not all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in content.items()):
        raise CheckpointError(
            f"{path} contains more than a dict of tensors: save model.state_dict()"
        )
    for name, tensor in content.items():
        dense = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
        if not dense or tensor.is_complex():
            raise CheckpointError(
                f"{path}: {name} is sparse, quantized or complex: save it as a dense float tensor"
            )
    return {_strip_prefixes(name): tensor for name, tensor in content.items()}


def _strip_prefixes(name: str) -> str:
    """Remove the prefixes that DataParallel and torch.compile add to a parameter's name."""
    while name.startswith(_PREFIXES):
        name = name.split(".", 1)[1]
    return name


def fill(model: nn.Module, weights: StateDict, arch: Arch, path: str) -> None:
    """Load `weights` into `model`; raise CheckpointError if any name or shape differs."""
    expected = model.state_dict()
    weights = {n: t for n, t in weights.items() if n in expected or not n.startswith(TRAINING_ONLY)}
    if "linear.weight" in expected and "fc.weight" in weights:
        weights = {
            n.replace("fc.", "linear.") if n.startswith("fc.") else n: t for n, t in weights.items()
        }
    for name, tensor in expected.items():
        if name.endswith("num_batches_tracked"):  # absent from files of old torch versions
            weights.setdefault(name, torch.zeros_like(tensor, device="cpu"))
    missing = [name for name in expected if name not in weights]
    unexpected = [name for name in weights if name not in expected]
    if missing or unexpected:
        first = f"it has no {missing[0]}" if missing else f"it has an unexpected {unexpected[0]}"
        raise CheckpointError(
            f"{path} does not match {arch}: {first} "
            f"({len(missing)} tensors missing, {len(unexpected)} unexpected); pass another --arch"
        )
    for name, tensor in expected.items():
        if weights[name].shape != tensor.shape:
            raise CheckpointError(_mismatch(name, expected, weights, arch, path))
    model.load_state_dict({name: weights[name] for name in expected}, assign=_on_meta(model))


def _on_meta(model: nn.Module) -> bool:
    """Whether the network is on the meta device, without storage."""
    return any(tensor.is_meta for tensor in model.state_dict().values())


def _mismatch(name: str, expected: StateDict, weights: StateDict, arch: Arch, path: str) -> str:
    """Describe a tensor of the wrong shape, and how to fix it."""
    actual, wanted = tuple(weights[name].shape), tuple(expected[name].shape)
    text = (
        f"{path} does not fit {arch}: {name} is {_shape_text(actual)} in the file, "
        f"{_shape_text(wanted)} in the network"
    )
    # If only the number of outputs of this one layer differs, it is the classifier.
    layer = name.rsplit(".", 1)[0]
    only_classes = all(
        weights[n].shape[1:] == t.shape[1:] if n.startswith(layer) else weights[n].shape == t.shape
        for n, t in expected.items()
    )
    return text + (
        f"; for {actual[0]} classes pass --classes {actual[0]}"
        if only_classes
        else "; pass the --arch it was trained with; if legr pruned it, load the pruned "
        ".safetensors, load_state_dict these weights into it, and legr_cli.save it"
    )


def _shape_text(shape: tuple[int, ...]) -> str:
    """Format a shape as `64x3x7x7`."""
    return "x".join(map(str, shape)) or "a scalar"


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of a network's names, shapes, types and values, sorted by name.

    Floating-point tensors are converted to float32 first, so `.float()` does not change it.
    """
    others = [name for name, t in model.state_dict().items() if not isinstance(t, torch.Tensor)]
    if others:
        raise ModelError(f"'{others[0]}' in the network's state dict is not a tensor")
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_floating_point():
            tensor = tensor.float()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy())
    return digest.hexdigest()
