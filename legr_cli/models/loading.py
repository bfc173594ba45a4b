"""A state dict → a network, by the module's own `load_state_dict`, hooks and versions included.

torch decides what fits; names and shapes are compared only to say what does not.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from legr_cli.errors import CheckpointError, first_line
from legr_cli.models.registry import Arch
from legr_cli.models.torchvision_models import UNUSED_HEADS

_HARMLESS = ("total_ops", "total_params", "n_averaged", "num_batches_tracked")  # no weights


class StateDict(OrderedDict[str, Any]):
    """Tensors by name, with the versions of the modules that wrote them, as torch keeps both."""

    _metadata: dict[str, dict[str, Any]] | None = None


def state_dict(tensors: Mapping[str, Any], metadata: Any = None) -> StateDict:
    """A state dict of one's own, with the versions that torch or a file recorded, if any."""
    made = StateDict(tensors)
    if isinstance(metadata, Mapping):
        versions = {k: dict(v) for k, v in metadata.items() if _is_version(k, v)}
        made._metadata = versions  # a copy: loading writes to it
    return made


def _is_version(name: Any, version: Any) -> bool:
    """Whether this is what torch records of a module, not what another program left there."""
    return isinstance(name, str) and isinstance(version, Mapping)


def like_saved(tensors: Mapping[str, Any], model: nn.Module) -> StateDict:
    """Tensors that this very module gave, with the versions that it records."""
    return state_dict(tensors, getattr(model.state_dict(), "_metadata", None))


def load_into(model: nn.Module, weights: StateDict, arch: Arch, path: str) -> list[str]:
    """Load weights into a network; returns the names that it does not use.

    Raises:
        CheckpointError: A tensor is missing, unexpected, of another shape or of a strange kind.
    """
    before = model.state_dict()
    heads = UNUSED_HEADS.get(arch.name, ())
    used = {name: t for name, t in weights.items() if name in before or not name.startswith(heads)}
    for name, tensor in before.items():
        if name.endswith("num_batches_tracked"):  # absent from files of old torch versions
            used.setdefault(name, torch.zeros_like(tensor, device="cpu"))
    for name, tensor in used.items():
        if isinstance(tensor, torch.Tensor) and not _is_dense(tensor):
            raise CheckpointError(
                f"{path}: {shown(name)} is sparse, quantized or complex: save it as a dense float "
                "tensor"
            )
    missing, unexpected = _load(model, state_dict(used, weights._metadata), before, arch, path)
    ignored = [name for name in unexpected if name.rpartition(".")[2] in _HARMLESS]
    unexpected = [name for name in unexpected if name not in ignored]
    if missing or unexpected:
        raise CheckpointError(_unmatched(missing, unexpected, arch, path))
    return ignored


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a network can take this tensor as it is."""
    odd = tensor.is_quantized or tensor.is_meta or tensor.is_complex()
    return tensor.layout == torch.strided and not odd


def _load(
    model: nn.Module, weights: StateDict, before: Mapping[str, Any], arch: Arch, path: str
) -> tuple[list[str], list[str]]:
    """Load, and return the names that torch reports as missing and unexpected."""
    on_meta = any(getattr(tensor, "is_meta", False) for tensor in before.values())
    try:
        try:
            report = model.load_state_dict(weights, strict=False, assign=on_meta)
        except RuntimeError:
            raise
        except Exception:
            if weights._metadata is not None:
                raise
            # A hook that insists on a version, in a file without any: assume today's.
            report = model.load_state_dict(like_saved(weights, model), strict=False, assign=on_meta)
    except Exception as error:  # hooks raise whatever they like
        raise CheckpointError(_refused(error, before, weights, arch, path)) from error
    after = {} if any(map(is_lazy, before.values())) else model.state_dict()
    for name, tensor in after.items():
        if name not in before or _shape(tensor) != _shape(before[name]):
            raise CheckpointError(
                f"{path} turns {arch} into an older version of itself ({shown(name)} changes): "
                "pass the module:factory that builds that version as --arch"
            )
    return list(report.missing_keys), list(report.unexpected_keys)


def _refused(
    error: Exception, before: Mapping[str, Any], weights: StateDict, arch: Arch, path: str
) -> str:
    """Why torch could not load the weights, in one line."""
    missing = [name for name in before if name not in weights]
    unexpected = [name for name in weights if name not in before]
    if missing:
        return _unmatched(missing, unexpected, arch, path)
    for name, tensor in before.items():
        if _shape(weights[name]) != _shape(tensor):
            return _mismatch(name, before, weights, arch, path)
    # torch's first line says only that there are errors; the next ones say which.
    reason = first_line(error) if "\n\t" not in str(error) else str(error).splitlines()[1].strip()
    return f"{path} cannot be loaded into {arch}: {reason[:200]}"


def _unmatched(missing: list[str], unexpected: list[str], arch: Arch, path: str) -> str:
    """Describe names that differ."""
    first = (
        f"it has no {shown(missing[0])}"
        if missing
        else f"it has an unexpected {shown(unexpected[0])}"
    )
    return (
        f"{path} does not match {arch}: {first} ({len(missing)} tensors missing, "
        f"{len(unexpected)} unexpected); pass another --arch"
    )


def _mismatch(
    name: str, expected: Mapping[str, Any], weights: StateDict, arch: Arch, path: str
) -> str:
    """Describe a tensor of the wrong shape, and how to fix it."""
    actual, wanted = _shape(weights[name]), _shape(expected[name])
    text = (
        f"{path} does not fit {arch}: {shown(name)} is {_shape_text(actual)} in the file, "
        f"{_shape_text(wanted)} in the network"
    )
    # If only the number of outputs of this one layer differs, it is the classifier.
    layer = name.rsplit(".", 1)[0]
    only_classes = all(
        (_shape(weights[n]) or ())[skip:] == (_shape(t) or ())[skip:]
        for n, t in expected.items()
        for skip in (1 if n.startswith(layer) else 0,)
    )
    return text + (
        f"; for {actual[0]} classes pass --classes {actual[0]}"
        if only_classes and actual and actual[0]
        else "; pass the --arch it was trained with; if legr pruned it, load the pruned "
        ".safetensors, load_state_dict these weights into it, and legr_cli.save it"
    )


def _shape(tensor: Any) -> tuple[int, ...] | None:
    """The shape of a tensor; None for what has none, such as a layer that was not used yet."""
    return None if is_lazy(tensor) or not isinstance(tensor, torch.Tensor) else tuple(tensor.shape)


def _shape_text(shape: tuple[int, ...] | None) -> str:
    """Format a shape as `64x3x7x7`."""
    return "no tensor" if shape is None else "x".join(map(str, shape)) or "a scalar"


def shown(name: str) -> str:
    """A name from a file, on one line."""
    return name if name.isprintable() and len(name) <= 80 else f"{name[:80]!r}…"
