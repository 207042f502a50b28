"""The commands of ``slipform``, one module each: ``add(subparsers)`` and ``run(arguments)``.

They import nothing heavy at the top: `slipform --help` must not wait for torch.
"""

from .errors import CommandError, require

__all__ = ["CommandError", "require"]
