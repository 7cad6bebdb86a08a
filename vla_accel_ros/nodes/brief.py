"""Cuts sentences, which may quote what others sent, to MOST_LETTERS.

Every log line of a node passes here (nodes/running/brief_log.py), and every sentence that a node publishes:
reasons, refusals, problems, lines of /diagnostics and responses of services.
"""

from __future__ import annotations

MOST_LETTERS = 500
_END = 150
"""Letters of the end that are kept: it says what to do."""


def brief(sentence: str) -> str:
    """A sentence of at most MOST_LETTERS: a longer one without its middle."""
    if len(sentence) <= MOST_LETTERS:
        return sentence
    middle = f" [{len(sentence)} letters] "
    return f"{sentence[: MOST_LETTERS - _END - len(middle)]}{middle}{sentence[-_END:]}"
