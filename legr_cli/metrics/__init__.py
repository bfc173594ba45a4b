"""Importance metrics: how much a filter matters, before α and κ."""
