"""Mining hard captions for caption files of any size."""

from slipform_training.mining.readers import Columns, read_rows
from slipform_training.mining.report import Report
from slipform_training.mining.resume import MismatchError
from slipform_training.mining.rows import InputError, Row
from slipform_training.mining.run import mine
from slipform_training.mining.settings import MiningSettings
from slipform_training.mining.tagging import Tagger

__all__ = [
    "Columns",
    "InputError",
    "MiningSettings",
    "MismatchError",
    "Report",
    "Row",
    "Tagger",
    "mine",
    "read_rows",
]
