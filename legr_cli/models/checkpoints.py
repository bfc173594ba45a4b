"""A weights file → tensors by name. No pickle is trusted."""

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

from legr_cli.errors import CheckpointError, OutputError, first_line
from legr_cli.models.registry import TRAINING_ONLY, Arch, known_names, parse_arch

PICKLED = (".pt", ".pth", ".th", ".t7", ".tar")
SAFE = ".safetensors"
_WRAPPERS = ("state_dict", "model", "net", "model_state_dict")
_PREFIXES = ("module.", "_orig_mod.")
_INERT: list[Any] = [  # what training scripts leave beside the weights, and what cannot run code
    argparse.Namespace,
    np.dtype,
    np.float64(0).__reduce__()[0],  # the function that unpickles numpy's numbers
    *(type(np.dtype(kind)) for kind in ("f2", "f4", "f8", "i4", "i8", "?")),
]

StateDict = dict[str, torch.Tensor]


def read_weights(path: Path) -> tuple[StateDict, dict[str, str]]:
    """The tensors of a file, and the notes of its header (none in a pickle)."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a directory: name a weights file in it")
    if not path.exists():
        name = parse_arch(str(path)).name
        known = name in known_names() or name.startswith("timm:")
        hint = f"; for that network without weights: random:{path}" if known else ""
        raise CheckpointError(
            f"{path} does not exist; a CHECKPOINT is a file, torchvision:NAME or random:NAME{hint}"
        )
    if path.suffix == SAFE:
        return read_safetensors(path)
    if path.suffix in PICKLED:
        return _read_pickle(path), {}
    raise CheckpointError(f"{path}: unknown suffix; legr reads {', '.join((SAFE, *PICKLED))}")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A .safetensors file, whose header its library checks."""
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
            f"{path} is no sound safetensors file: {first_line(error)}"
        ) from error


def read_safetensors(path: Path) -> tuple[StateDict, dict[str, str]]:
    """The tensors and notes of a .safetensors file."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def read_header(path: Path) -> dict[str, str]:
    """The notes of a .safetensors file; its tensors are not read."""
    with _opened(path) as file:
        return dict(file.metadata() or {})


def write_weights(weights: StateDict, notes: dict[str, str], temporary: Path) -> None:
    """Write a .safetensors file that takes its place when complete."""
    tensors: StateDict = {}
    seen: set[int] = set()
    for name, tensor in weights.items():
        own = tensor.detach().cpu().contiguous()
        storage = own.untyped_storage()
        part = storage.data_ptr() in seen or storage.nbytes() != own.nbytes
        tensors[name] = own.clone() if part else own  # tied weights and views are written twice
        seen.add(storage.data_ptr())
    try:
        save_file(tensors, temporary, notes)  # one note at most: of two, any comes first
    except SafetensorError as error:
        raise OutputError(
            f"cannot write {temporary.parent}: {first_line(error)}; nothing was changed"
        ) from error


def _read_pickle(path: Path) -> StateDict:
    """The state dict in a file of `torch.save`, read without running any code of it."""
    try:
        with torch.serialization.safe_globals(_INERT), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        _, asked, culprit = str(error).partition("GLOBAL ")
        what = (
            f"holds pickled objects ({culprit.split(' ')[0]})"
            if asked
            else "is damaged or a pickle"
        )
        raise CheckpointError(
            f"{path} {what}; legr reads tensors only: save model.state_dict() with torch.save"
        ) from error
    except Exception as error:  # torch.load fails in many ways on files that are not its own
        raise CheckpointError(
            f"{path} is damaged or no weights file: {first_line(error)}"
        ) from error
    return _bare(path, found)


def _bare(path: Path, found: Any) -> StateDict:
    """Unwrap `state_dict`, `model`, `net` and prefixes of wrappers."""
    for _ in _WRAPPERS:
        inner = (
            next((found[k] for k in _WRAPPERS if k in found), None)
            if isinstance(found, dict)
            else None
        )
        if not isinstance(inner, dict):
            break
        found = inner
    if not isinstance(found, dict) or not found:
        raise CheckpointError(f"{path} holds no state dict: save model.state_dict()")
    if not all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in found.items()):
        raise CheckpointError(f"{path} holds more than tensors by name: save model.state_dict()")
    for name, tensor in found.items():
        plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
        if not plain or tensor.is_complex():
            raise CheckpointError(f"{path}: {name} is sparse, quantised or complex: save it dense")
    return {_without_prefixes(name): tensor for name, tensor in found.items()}


def _without_prefixes(name: str) -> str:
    """A parameter's own name."""
    while name.startswith(_PREFIXES):
        name = name.split(".", 1)[1]
    return name


def fill(model: nn.Module, weights: StateDict, arch: Arch, path: str) -> None:
    """Give `model` these weights, every name and shape as it expects; else say what is wrong."""
    own = model.state_dict()
    weights = {n: t for n, t in weights.items() if n in own or not n.startswith(TRAINING_ONLY)}
    if "linear.weight" in own and "fc.weight" in weights:
        weights = {
            n.replace("fc.", "linear.") if n.startswith("fc.") else n: t for n, t in weights.items()
        }
    for name, tensor in own.items():
        if name.endswith("num_batches_tracked"):  # older files have none
            weights.setdefault(name, torch.zeros_like(tensor, device="cpu"))
    missing = [name for name in own if name not in weights]
    strange = [name for name in weights if name not in own]
    if missing or strange:
        first = f"it has no {missing[0]}" if missing else f"it has {strange[0]}"
        raise CheckpointError(
            f"{path} is of another network than {arch}: {first} "
            f"({len(missing)} tensors missing, {len(strange)} unknown); pass another --arch"
        )
    for name, tensor in own.items():
        if weights[name].shape != tensor.shape:
            raise CheckpointError(_mismatch(name, own, weights, arch, path))
    model.load_state_dict({name: weights[name] for name in own}, assign=_on_meta(model))


def _on_meta(model: nn.Module) -> bool:
    """Whether the network has no memory of its own yet."""
    return any(tensor.is_meta for tensor in model.state_dict().values())


def _mismatch(name: str, own: StateDict, weights: StateDict, arch: Arch, path: str) -> str:
    """One line on a tensor of the wrong shape, with the option that would mend it."""
    has, wants = tuple(weights[name].shape), tuple(own[name].shape)
    text = (
        f"{path} does not fit {arch}: {name} is {_by(has)} in the file, {_by(wants)} in the network"
    )
    last = name.rsplit(".", 1)[0]
    head = all(
        weights[n].shape[1:] == t.shape[1:] if n.startswith(last) else weights[n].shape == t.shape
        for n, t in own.items()
    )
    return text + (
        f"; for {has[0]} classes pass --classes {has[0]}"
        if head
        else "; pass the --arch it was trained as, or, if legr pruned it, load the pruned "
        ".safetensors, load_state_dict these weights into it, and legr_cli.save it"
    )


def _by(shape: tuple[int, ...]) -> str:
    """`64x3x7x7`."""
    return "x".join(map(str, shape)) or "one number"


def fingerprint(model: nn.Module) -> str:
    """sha256 of a network's weights in single precision, in order of name.

    Names, shapes, types and bytes count; `.float()` before or after makes no difference.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_floating_point():
            tensor = tensor.float()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy())
    return digest.hexdigest()
