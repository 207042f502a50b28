"""What a loss does to a model: gradient shares, margins, similarity against concreteness.

The measurements of Slipform's figures 3, 4 and 6 (arXiv 2604.13313) for any checkpoint and data;
``analyse(subjects, config, out)`` in ``run.py`` is the whole of ``slipform analyze``.
"""
