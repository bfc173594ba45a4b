"""The card of a network: what it is and how it came about, as files hold it and modules carry it.

A module that came from `load`, `prune` or `finetune` carries its card through `copy.deepcopy`,
`.to(…)` and any training loop, so that `save` can write it back.
"""

import itertools
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import is_lazy

from legr_cli.errors import CheckpointError, ModelError, SettingError
from legr_cli.models.checkpoints import read_header
from legr_cli.models.registry import Arch
from legr_cli.shapes import Shapes, shapes_json
from legr_cli.shapes import check_shapes as check_input

FORMAT, VERSION = "legr-model", 1
KEY = "legr"  # the entry of a safetensors header that holds the card
_CARRIED = "legr_card"  # the entry of a module that holds its card

Channels = dict[str, list[int]]  # layer → its output channels, numbered as in the dense network


@dataclass(frozen=True)
class Card:
    """What a network is, apart from its weights."""

    arch: Arch
    input_shape: Shapes
    kept: Channels | None = None  # None: nothing was removed
    notes: dict[str, Any] = field(default_factory=dict)  # provenance, statistics, class names
    module: str = ""  # the part of the network that may be pruned; "": all of it

    def header(self) -> str:
        """The card as JSON, for the header of a file."""
        card = {
            "format": FORMAT,
            "version": VERSION,
            "arch": self.arch.name,
            "options": self.arch.options,
            "classes": self.arch.classes,
            "input": shapes_json(self.input_shape),
            "kept": self.kept,
            "notes": self.notes,
        }
        return json.dumps({**card, "module": self.module} if self.module else card)


def parse_card(path: str, header: str) -> Card:
    """The card in a file's header, every value checked before it is used."""
    try:
        data = json.loads(header)
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise CheckpointError(
                f"{path} has format {data['format']} {data['version']}; this legr reads "
                f"{FORMAT} {VERSION}"
            )
        arch = Arch(data["arch"], dict(data["options"]), data["classes"])
        shape, module = check_input(data["input"]), data.get("module", "")
        kept, notes = data["kept"], data.get("notes") or {}
        valid = (
            isinstance(notes, dict)
            and isinstance(module, str)
            and isinstance(arch.name, str)
            and isinstance(arch.classes, int | None)
            and (kept is None or all(_is_list_of_channels(row) for row in kept.values()))
        )
    except CheckpointError:
        raise
    except SettingError as error:
        raise CheckpointError(f"{path} has a damaged header: a value has the wrong type") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} has a damaged header: {error!r}") from error
    if not valid:
        raise CheckpointError(f"{path} has a damaged header: a value has the wrong type")
    return Card(arch, shape, kept, notes, module)


def _is_list_of_channels(row: Any) -> bool:
    """Whether these are whole numbers in strictly rising order."""
    return (
        isinstance(row, list)
        and all(type(channel) is int for channel in row)
        and all(a < b for a, b in itertools.pairwise(row))
    )


def read_card(path: Path) -> Card:
    """The card of a legr file; its weights are not read."""
    header = read_header(path)
    if KEY not in header:
        raise CheckpointError(f"{path} was not written by legr")
    return parse_card(str(path), header[KEY])


def outputs_of(notes: dict[str, Any], module: str) -> str | None:
    """What outputs of images × numbers are, where a card tells; those of a part are values."""
    return "values" if module or notes.get("outputs") == "values" else None


def read_notes(path: Path) -> dict[str, Any]:
    """The notes of a legr file's card; empty for other files."""
    header = read_header(path)
    return dict(parse_card(str(path), header[KEY]).notes) if KEY in header else {}


def with_command(notes: dict[str, Any], command: str) -> dict[str, Any]:
    """Notes with one more command in the list of those that led to this network."""
    before = notes.get("commands")
    return {**notes, "commands": [*(before if isinstance(before, list) else []), command]}


@dataclass(frozen=True)
class _Carried:
    """A card, and the shapes of the tensors that it is about."""

    card: Card
    shapes: dict[str, tuple[int, ...]]


def attach_card(model: nn.Module, card: Card) -> nn.Module:
    """Make a module carry its card; returns the module."""
    carried = _Carried(card, _shapes(model))
    if isinstance(model, fx.GraphModule):
        model.meta[_CARRIED] = carried  # the one attribute that copying a GraphModule preserves
    else:
        model.__dict__[_CARRIED] = carried
    return model


def card_of(model: nn.Module) -> Card | None:
    """The card that a module carries, if any."""
    carried = _carried(model)
    return None if carried is None else carried.card


def check_shapes(model: nn.Module) -> None:
    """See that a module's tensors still have the shapes that they had when it got its card.

    Raises:
        ModelError: They do not: its card describes another network.
    """
    carried = _carried(model)
    own, known = _shapes(model), {} if carried is None else carried.shapes
    for name in sorted(own | known) if carried is not None else ():
        if own.get(name) != known.get(name):
            change = f"changed from {known.get(name, 'nothing')} to {own.get(name, 'nothing')}"
            raise ModelError(
                f"the module no longer fits its card: '{name}' {change}. Was a layer replaced? "
                "Replace it in the factory, and load, train or prune the network again"
            )


def _carried(model: nn.Module) -> _Carried | None:
    """What a module carries."""
    carried = (model.meta if isinstance(model, fx.GraphModule) else model.__dict__).get(_CARRIED)
    return carried if isinstance(carried, _Carried) else None


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors that a file would hold."""
    return {
        name: tuple(value.shape)
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }


def unwrap(model: Any) -> nn.Module:
    """The module inside DataParallel, DistributedDataParallel and torch.compile."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrap(model.module)
    if "_orig_mod" in model._modules:  # torch.compile
        return unwrap(model._modules["_orig_mod"])
    _check_has_values(model)
    return model


def _check_has_values(model: nn.Module) -> None:
    """Raise if a module is TorchScript, or some of its weights have no values yet."""
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("TorchScript cannot be traced: pass the module that it was made from")
    for name, tensor in model.state_dict().items():
        if is_lazy(tensor):
            raise ModelError(f"'{name}' has no shape yet: run the lazy module on an image first")
        if getattr(tensor, "is_meta", False):
            raise ModelError(
                f"'{name}' is on the meta device and has no values: load the weights first, for "
                "example with model.to_empty(device='cpu') and load_state_dict"
            )


def without_results(card: Card) -> Card:
    """The card of a network made from this one: what it reached no longer applies."""
    results = ("repaired", "training", "latency")
    stays = {key: note for key, note in card.notes.items() if key not in results}
    return replace(card, notes=stays)
