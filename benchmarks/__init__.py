"""Measurements; one file a question. `make bench` runs them."""
