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
from legr_cli.models.registry import known_names, parse_arch

PICKLED = (".pt", ".pth", ".th", ".t7", ".tar", ".ckpt", ".bin", ".pkl")
SAFE = ".safetensors"
_INERT: list[Any] = [  # harmless types that training scripts often save with the weights
    argparse.Namespace,
    type(Path()),
    np.ndarray,
    np.dtype,
    np.zeros(1).__reduce__()[0],  # the function that unpickles NumPy arrays
    np.float64(0).__reduce__()[0],  # the function that unpickles NumPy scalars
    *(type(np.dtype(kind)) for kind in ("f2", "f4", "f8", "u1", "u4", "u8", "i4", "i8", "?")),
]

Tensors = dict[str, torch.Tensor]


def read_content(path: Path) -> tuple[Any, dict[str, str]]:
    """Read what a file holds and the metadata in its header (a pickle has none)."""
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


def read_safetensors(path: Path) -> tuple[Tensors, dict[str, str]]:
    """Read the tensors and metadata of a .safetensors file."""
    with _open_safetensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def read_header(path: Path) -> dict[str, str]:
    """Read the metadata of a .safetensors file, without its tensors."""
    with _open_safetensors(path) as file:
        return dict(file.metadata() or {})


def write_weights(weights: Tensors, notes: dict[str, str], temporary: Path) -> None:
    """Write a .safetensors file under a temporary name."""
    tensors: Tensors = {}
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


def _read_pickle(path: Path) -> Any:
    """Read a `torch.save` file without running code from it."""
    try:
        with torch.serialization.safe_globals(_INERT), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        _, asked, culprit = str(error).partition("GLOBAL ")
        what, more = "is damaged or an unsafe pickle", ""
        if asked:
            what = f"holds pickled objects ({culprit.split(' ')[0]})"
            more = (
                f"; if you trust the file, open it with torch.load('{path.name}', "
                "weights_only=False) and save its state dict"
            )
        raise CheckpointError(
            f"{path} {what}; legr only reads tensors: save model.state_dict() with torch.save{more}"
        ) from error
    except Exception as error:  # torch.load raises many types of errors on foreign files
        raise CheckpointError(
            f"{path} is damaged or not a weights file: {first_line(error)}"
        ) from error


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
