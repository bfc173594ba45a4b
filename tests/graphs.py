"""Small ONNX files made by hand, good and bad."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def value(name: str, shape: list, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 18,
    domain: str | None = None,
) -> Path:
    """Write a graph whose output is `y`."""
    kept = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    kind = inputs[0].type.tensor_type.elem_type
    graph = helper.make_graph(nodes, "g", inputs, [value("y", None, kind)], kept)
    sets = [helper.make_opsetid("", opset)]
    sets += [helper.make_opsetid(domain, 1)] if domain else []
    model = helper.make_model(graph, opset_imports=sets, ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def convolution(path: Path, weight: np.ndarray | None = None, side: object = 8) -> Path:
    """images → conv 3x3 → y; 5 filters unless there is a weight."""
    weight = np.ones((5, 3, 3, 3), np.float32) if weight is None else weight
    node = helper.make_node("Conv", ["images", "w"], ["y"], pads=[1, 1, 1, 1])
    return save(path, [node], [value("images", ["n", 3, side, side])], {"w": weight})


def sum_of_two(path: Path) -> Path:
    """left + right → y."""
    node = helper.make_node("Add", ["left", "right"], ["y"])
    return save(path, [node], [value("left", [1, 3]), value("right", [1, 3])])


def unknown_op(path: Path) -> Path:
    """An op of nobody's."""
    node = helper.make_node("Magic", ["x"], ["y"], domain="my.own")
    return save(path, [node], [value("x", [1, 3])], domain="my.own")


def numbers(path: Path, kind: int) -> Path:
    """x of any kind → y."""
    return save(path, [helper.make_node("Identity", ["x"], ["y"])], [value("x", [1, 3], kind)])
