"""Name → network, file → weights."""
