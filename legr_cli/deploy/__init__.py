"""From a network to a board: ONNX."""
