"""Images in, training and measuring: what learning a ranking and fine-tuning share."""
