"""MACCO: masked compositional concept modeling for CLIP (arXiv 2606.13288).

``Macco(clip, config)`` is what is trained, with ``MaccoLoss``; ``macco.clip`` is the plain CLIP.
Formulae: ``losses.py``; who gets gradients from what: ``model.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import MaccoConfig

if TYPE_CHECKING:
    from .losses import MaccoLoss
    from .model import Macco

__all__ = ["Macco", "MaccoConfig", "MaccoLoss"]


def __getattr__(name: str) -> Any:
    """Import torch when it is needed, not where the command line only lists its options."""
    if name == "Macco":
        from .model import Macco

        return Macco
    if name == "MaccoLoss":
        from .losses import MaccoLoss

        return MaccoLoss
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
