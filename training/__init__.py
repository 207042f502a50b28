"""Slipform's training package: mining, data, fine-tuning, evaluation and the ``slipform`` command.

The folder is ``training/``, the import name ``slipform_training``. It builds on the public names
of ``slipform_kernels`` and needs the extra ``train``.
"""

from .losses import open_clip_loss

__all__ = ["open_clip_loss"]
