"""Studies: many branches from one start, compared seed by seed on the demo's scenes.

``run_study(STUDIES["margins"], DemoConfig(seeds=3), Path("runs/demo"))``; see ``run.py``.
"""

from .branches import STUDIES, Branch, Contrast, Study
from .run import run_study

__all__ = ["STUDIES", "Branch", "Contrast", "Study", "run_study"]
