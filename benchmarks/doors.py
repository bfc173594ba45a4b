"""Which networks come in, and are the pruned networks right?

    python benchmarks/doors.py [PATTERN …] [--journal FILE] [--seconds 300]

opens each network of `door_nets.py` in a process of its own, prunes it at random, and in double
precision compares the pruned network with the dense one (its own code, not the graph) in which the
weights that read removed channels are zero, at every picture size; the cost model with fvcore's
count; and exports it to ONNX. Networks that are in the journal already are not run again.
"""

import argparse
import copy
import fnmatch
import json
import multiprocessing
import os
import resource
import tempfile
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnxscript  # noqa: F401 (imported once, here)
import torch
import torch.onnx._internal.exporter
import torchvision  # noqa: F401
from door_nets import Door, doors, enliven
from torch import nn

from legr_cli.channels import Units, apply, couple
from legr_cli.channels.check import disagreement
from legr_cli.channels.inputs import Source, submodule
from legr_cli.channels.slicing import input_weights
from legr_cli.channels.structures import tensors
from legr_cli.channels.switches import WithoutNoise, evaluating
from legr_cli.channels.trace import fetch_attr
from legr_cli.cost import count_flops, price
from legr_cli.deploy.export import export
from legr_cli.errors import first_line

_MEMORY = 12 * 2**30  # bytes of address space for one network


def silenced(model: nn.Module, units: Units, kept: np.ndarray) -> nn.Module:
    """Copy the dense network with zeros in the weights that read removed channels."""
    model = copy.deepcopy(model)
    part = submodule(model, units.source.module)
    modules = dict(part.named_modules())
    with torch.no_grad():
        for name, layer in units.flow.layers.items():
            stays = torch.from_numpy(units.keeps(kept, layer.into))
            weight = modules[name].weight if name in modules else fetch_attr(part, name)
            into = 1 if layer.axes.into is None else layer.axes.into
            groups = len(stays) // weight.shape[into]
            # a grouped weight is (out, in / groups, …): each group of outputs reads its own inputs
            by_group = weight.movedim(into, 1).unflatten(0, (groups, -1))
            by_group.mul_(stays.view(groups, 1, -1, *[1] * (by_group.dim() - 3)))
        for name, ids in units.flow.readers.items():  # recurrent layers
            for key in input_weights(modules[name]):
                getattr(modules[name], key)[:, torch.from_numpy(~units.keeps(kept, ids))] = 0
    return model


def state_of(model: nn.Module) -> dict[str, Any]:
    """What a network remembers: its tensors, and the names of its modules' attributes."""
    state: dict[str, Any] = {name: t.clone() for name, t in model.state_dict().items()}
    for name, module in model.named_modules():
        state[f"{name} (attributes)"] = sorted(vars(module))
        plain = {k: v for k, v in vars(module).items() if isinstance(v, int | float | str | tuple)}
        state[f"{name} (values)"] = repr(plain)
        state |= {
            f"{name}.{k} (tensor)": v
            for k, v in vars(module).items()
            if isinstance(v, torch.Tensor)
        }
    return state


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what differs between two states."""

    def same(a: Any, b: Any) -> bool:
        return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b

    changed = [n for n in before if n not in after or not same(before[n], after[n])]
    return changed + [n for n in after if n not in before]


def runs(model: nn.Module, shape: Any, module: str) -> bool:
    """Whether the network's own code takes pictures of this size."""
    try:
        with evaluating(model):
            Source(model, shape, module).call(batch=2).run(submodule(model, module))
    except Exception:
        return False
    return True


def largest_difference(units: Units, dense: nn.Module, smaller: nn.Module, shape: Any) -> float:
    """Between two networks in double precision on noise, relative; infinite if shapes differ."""
    call = Source(dense, shape, units.source.module).call(batch=2, seed=3)
    outputs = []
    for network in (dense, smaller):
        part = submodule(network, units.source.module)
        with evaluating(part), WithoutNoise():
            outputs.append([t.double() for t in tensors(call.run(part))])
    if [t.shape for t in outputs[0]] != [t.shape for t in outputs[1]]:
        return float("inf")
    pairs = list(zip(*outputs, strict=True))
    if not any(float(a.std()) > 1e-30 for a, _ in pairs if a.numel() > 1):
        raise AssertionError("the output is constant, which proves nothing")
    return max(float((a - b).abs().max() / max(float(a.abs().max()), 1e-300)) for a, b in pairs)


def tried(name: str, door: Door) -> dict[str, Any]:
    """Open, prune, check and export a network: a line of the journal."""
    torch.manual_seed(0)
    model, first = door.build().double(), door.sizes[0]
    call = Source(model.eval(), first, door.module).call(batch=2)
    enliven(model, lambda: call.run(submodule(model, door.module)))
    row: dict[str, Any] = {"name": name, "size": "x".join(map(str, first)), "module": door.module}
    before, start = state_of(model), time.process_time()
    units = couple(model, first, door.module)
    row["seconds"] = round(time.process_time() - start, 2)
    row["changed"] = changes(before, state_of(model))[:5]
    layers = units.flow.layers.values()
    filters = sum(len(layer.out) for layer in layers) + sum(units.flow.unsupported.values())
    free = sum(int((units.unit_of(layer.out) >= 0).sum()) for layer in layers)
    cost = price(units)
    kept = units.without_empty_tensors(np.random.default_rng(0).random(units.count) < 0.6)
    smaller = apply(units, kept)
    row |= {
        "opened": True,
        "layers": len(layers),
        "prunable": free / filters,
        "pins": sorted({pin.reason for pin in units.pins})[:4],
        "law2": disagreement(units, kept, smaller, exact=True),
    }
    dense = silenced(model, units, kept)
    sizes = [first, *(size for size in door.sizes[1:] if runs(model, size, door.module))]
    row["law1"] = [largest_difference(units, dense, smaller, size) for size in sizes]
    counted = count_flops(smaller, first, door.module)
    row["law3"] = bool(counted == cost.total(cost.flops, cost.counts(kept)))
    right = row["law2"] < 1e-9 and max(row["law1"]) < 1e-9
    row["right"] = bool(right and row["law3"] and not row["changed"])
    return row | exported(units, smaller)


def exported(units: Units, smaller: nn.Module) -> dict[str, Any]:
    """Export the pruned part to ONNX for a batch of one."""
    source = units.source
    part = submodule(smaller, source.module).float()
    shape = tuple(source.call(batch=1).tensors[0].shape[1:])
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = export(part, Path(folder) / "net.onnx", batch=1, input_shape=shape)
        except Exception as error:
            return {"exported": False, "reason": f"{type(error).__name__}: {first_line(error)}"}
    return {"exported": True, "onnx": result.difference}


def one(name: str, door: Door, answer: Connection) -> None:
    """Try a network, and send its line."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # some networks print
    try:
        row = tried(name, door)
    except Exception as error:
        row = {"name": name, "opened": False, "reason": f"{type(error).__name__}: {error}"[:400]}
    answer.send(row)


def in_process(name: str, door: Door, seconds: int) -> dict[str, Any]:
    """The line of a network, from a process that may fail or take too long."""
    process_of = multiprocessing.get_context("fork")  # which need not import torch again
    receiver, sender = process_of.Pipe(duplex=False)
    process = process_of.Process(target=one, args=(name, door, sender))
    process.start()
    sender.close()
    try:
        if receiver.poll(seconds):
            return dict(receiver.recv())
        return {"name": name, "opened": False, "reason": f"took over {seconds} s"}
    except EOFError:
        return {"name": name, "opened": False, "reason": f"ended with exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def line(row: dict[str, Any]) -> str:
    """A network as a row of a Markdown table."""
    yes = {True: "yes", False: "**no**"}
    name = f"{row['name']} ({row['module']})" if row.get("module") else row["name"]
    share = f"{row['prunable']:.0%}" if "prunable" in row else ""
    right = yes[row["right"]] if "right" in row else ""
    out = yes[row["exported"]] if "exported" in row else ""
    why = row.get("reason") or ", ".join(row.get("pins", ()))
    cells = (name, row.get("size", ""), yes[row["opened"]], share, right, out)
    return "| " + " | ".join((*cells, str(row.get("seconds", "")), why.replace("|", "/"))) + " |"


def main() -> None:
    """Print a row for each network, and how many came in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--journal", type=Path, default=Path("doors.jsonl"))
    parser.add_argument("--seconds", type=int, default=300, help="Time limit for a network.")
    options = parser.parse_args()
    text = options.journal.read_text() if options.journal.exists() else ""
    rows = {row["name"]: row for row in map(json.loads, text.splitlines())}
    table = doors()
    names = [n for n in table if any(fnmatch.fnmatch(n, p) for p in options.patterns)]
    print("| network | size | opened | prunable | right | exported | s | reason, or what pins |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        if name not in rows:
            rows[name] = in_process(name, table[name], options.seconds)
            with options.journal.open("a") as journal:
                journal.write(json.dumps(rows[name]) + "\n")
        print(line(rows[name]), flush=True)
    for key in ("opened", "right", "exported"):
        print(f"{key}: {sum(bool(rows[n].get(key)) for n in names)} of {len(names)}")


if __name__ == "__main__":
    main()
