"""Results of benchmarks as tables and figures: ``write_report(results, out)`` does all."""

from .report import BLOCKS, render, write_report
from .results import Folder, ResultsError

__all__ = ["BLOCKS", "Folder", "ResultsError", "render", "write_report"]
