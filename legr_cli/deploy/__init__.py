"""ONNX export, and latency measured on this machine or on a board."""
