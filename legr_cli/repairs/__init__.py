"""Closed-form repair: a pruned network gets new weights from a few pictures, without labels."""
