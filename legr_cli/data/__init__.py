"""Pictures and labels: where they come from, and how batches are made of them."""
