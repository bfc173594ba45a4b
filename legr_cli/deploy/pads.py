"""A way around a fault of ONNX Runtime, in exported graphs."""

from typing import Any


def keep_pads_before_pools(graph: Any) -> None:
    """Put an op that changes nothing between a padding and a pooling that must not be merged.

    ONNX Runtime merges them, whatever it pads with: a maximum then ignores the zeros, and a padding
    as large as the kernel is refused when the file is loaded. It removes `Identity` before, so the
    op is the maximum of a single tensor.
    """
    import onnx_ir as ir

    for pool in list(graph):
        pad = pool.inputs[0].producer() if pool.op_type in ("AveragePool", "MaxPool") else None
        if pad is None or pad.op_type != "Pad" or pad.inputs[1].const_value is None:
            continue
        widest = max(pad.inputs[1].const_value.numpy().tolist())
        smallest = (
            1 if pool.op_type == "MaxPool" else min(pool.attributes["kernel_shape"].as_ints())
        )
        if widest >= smallest:
            kept = ir.node("Max", [pool.inputs[0]])
            kept.outputs[0].shape, kept.outputs[0].type = pad.outputs[0].shape, pad.outputs[0].type
            kept.outputs[0].name = f"{pad.outputs[0].name}_kept"
            graph.insert_before(pool, kept)
            pool.replace_input_with(0, kept.outputs[0])
