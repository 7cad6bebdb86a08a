"""What no policy takes of an observation: images that are none, words that are none or without end.

Both come from outside (cameras, clients, operators), so each is refused here in one sentence, before
anything is computed or allocated for it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_PIXELS = 1 << 26
"""Of an image: 8192 x 8192."""
MOST_TOKEN_CHARACTERS = 256
"""Of one token; the longest in a published vocabulary have some thirty. A longer text cannot fit, and to
tokenise megabytes of it takes seconds and a hundred times its memory."""


def check_image(name: str, image: Any) -> None:
    """Raise ValueError unless it is uint8 [H, W, 3] and not empty, of at most MOST_PIXELS."""
    if not isinstance(image, np.ndarray):
        raise ValueError(
            f"observation.images['{name}'] is of type {type(image).__name__}; give uint8 [H, W, 3]."
        )
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        description = f"{image.dtype} {list(image.shape)}"
        raise ValueError(f"observation.images['{name}'] is {description}; give uint8 [H, W, 3].")
    height, width = image.shape[:2]
    if height * width > MOST_PIXELS:
        raise ValueError(
            f"observation.images['{name}'] has {height} x {width} pixels; at most {MOST_PIXELS} are taken, "
            "so make it smaller."
        )


def check_prompt(text: str, tokens: Sequence[int], most_tokens: int) -> None:
    """Raise ValueError unless the prompt has at most so many tokens."""
    if len(tokens) > most_tokens:
        raise ValueError(
            f"the prompt of {reprlib.repr(text)} has {len(tokens)} tokens; the policy takes {most_tokens}, "
            "so shorten the instruction."
        )


def check_words(instruction: Any, most_tokens: int) -> None:
    """Raise ValueError unless it is a text that could have so many tokens at most."""
    if not isinstance(instruction, str):
        raise ValueError(f"observation.instruction is of type {type(instruction).__name__}; give a string.")
    length = len(instruction.strip())
    if length > most_tokens * MOST_TOKEN_CHARACTERS:
        raise ValueError(
            f"the prompt of {reprlib.repr(instruction)} has {length} characters; the policy takes "
            f"{most_tokens} tokens, so shorten the instruction."
        )
    try:
        instruction.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"observation.instruction has {instruction[error.start]!a} as character {error.start}, which is "
            "no Unicode text: it was decoded from bytes that are not UTF-8; give it in UTF-8."
        ) from error
