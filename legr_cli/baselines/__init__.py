"""The methods of prior work, with the same units, cost model and surgery as LeGR."""
