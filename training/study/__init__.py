"""Studies: many branches from one start, compared seed by seed on the demo's scenes.

``run_study(study, study.config(seeds=3), folder)`` with a study of ``STUDIES``; see ``run.py``.
"""

from .branches import STUDIES, Branch, Contrast, Study
from .run import run_study

__all__ = ["STUDIES", "Branch", "Contrast", "Study", "run_study"]
