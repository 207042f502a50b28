"""MACCO (arXiv 2606.13288): masked compositional concepts."""
