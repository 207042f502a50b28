"""The demo: small CLIP models trained from scratch in minutes, three losses side by side.

``run_demo(DemoConfig(), Path("runs/demo"))`` trains, compares and reports; see ``run.py``.
"""

from .config import BRANCHES, DemoConfig
from .run import run_demo

__all__ = ["BRANCHES", "DemoConfig", "run_demo"]
