"""Results of benchmarks as tables and figures: ``write_report(results, out)`` does all."""

from .report import BLOCKS, write_report
from .results import Folder, ResultsError

__all__ = ["BLOCKS", "Folder", "ResultsError", "write_report"]
