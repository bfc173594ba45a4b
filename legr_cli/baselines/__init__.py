"""Methods of the prior art, on the same units, cost and surgery."""
