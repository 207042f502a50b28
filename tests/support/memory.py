"""What is allocated inside a loss."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LargestStorage(TorchDispatchMode):
    """Records the largest storage of any result within.

    A mode is off while it handles an operator: what an operator of the package does is seen only
    where a function that it calls is `watched`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.operator = ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(out):
            if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() > self.bytes:
                self.bytes, self.operator = value.untyped_storage().nbytes(), str(func)
        return out

    def watched(self, function):
        """The function, with this mode on inside."""

        def inner(*args, **kwargs):
            with self:
                return function(*args, **kwargs)

        return inner
