"""Reasons for which a robot stands: which two are the same, and which only follow from others.

A reason is a sentence, and may carry numbers that change all the time. It is the same reason as long as its
other words stay. A cause hides its consequences: a chunk is late because a camera is silent, and a joint does
not follow because nobody listens to its controller's topic. Only the roots are told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# Not within names such as joint_1 or /arm2.
_NUMBER = re.compile(r"(?<![\w/])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w/])", re.IGNORECASE)
LISTED = 12
"""Number of names that a sentence lists at most."""


def unnumbered(sentence: str) -> str:
    """The sentence without its numbers; equal for two sentences of one reason."""
    return _NUMBER.sub("#", sentence)


def listed(names: Sequence[str]) -> str:
    """Names as words of a sentence, the first LISTED of them."""
    return ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")


def roots(follows: Mapping[str, Sequence[str]]) -> list[str]:
    """The reasons that follow from no other one, in their order.

    follows: reason -> beginnings of those that it follows from.
    """
    return [
        reason
        for reason, causes in follows.items()
        if not any(other.startswith(tuple(causes)) for other in follows if other != reason)
    ]
