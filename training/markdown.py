"""Tables in markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """Header and rows as a table; the first `words` columns to the left, figures to the right."""
    header, *body = ["| " + " | ".join(row) + " |" for row in rows]
    ruler = "|" + "---|" * words + "---:|" * (len(rows[0]) - words)
    return "\n".join([header, ruler, *body])
