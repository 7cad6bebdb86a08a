"""The prompts of GR00T: ids of everything but the images, and where those come.

N1.7 has the images and a formalised instruction in one turn of the user; N1.5 has a system part, numbered
images, and the instruction as Python writes a list of it. Special tokens are placed by their ids, so that an
instruction cannot contain one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from vla_accel_ros.models.groot.config import N1_5, N1_7, GrootConfig
from vla_accel_ros.models.processing.checks import check_prompt, check_words
from vla_accel_ros.models.text.tokenizer import JsonTokenizer

DEFAULT = "Perform the task."
"""The instruction in place of none."""
SPECIAL = {
    N1_7: ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    N1_5: ("<|im_start|>", "<|im_end|>", "<img>", "</img>"),
}
"""Around a turn, and around an image."""


def formalized(instruction: str, kind: str) -> str:
    """Small letters, digits and white space alone; N1.7 keeps underscores, too."""
    if kind == N1_7:
        return re.sub(r"[^\w\s]", "", instruction.lower())
    return "".join(letter for letter in instruction.lower() if letter.isalnum() or letter.isspace())


def make_words(
    tokenizer: JsonTokenizer, config: GrootConfig, instruction: str, images: int, formal: bool
) -> list[int]:
    """Return the ids of a prompt without those of its images. Raises ValueError if there are too many."""
    check_words(instruction, config.max_prompt)
    text = instruction or DEFAULT
    text = formalized(text, config.kind) if formal else text
    ids = list[int]()
    for part in _parts(config.kind, text, images):
        ids += [special(tokenizer, part)] if part in SPECIAL[config.kind] else tokenizer.encode(part)
    check_prompt(instruction, ids, config.max_prompt)
    return ids


def breaks_of(words: Sequence[int], tokenizer: JsonTokenizer, kind: str) -> tuple[int, ...]:
    """Before which word of a prompt each image comes; the same for any instruction."""
    begin = special(tokenizer, SPECIAL[kind][2])
    return tuple(index + 1 for index, id_ in enumerate(words) if id_ == begin)


def special(tokenizer: JsonTokenizer, name: str) -> int:
    """Return the id of a special token. Raises ValueError if the vocabulary has none."""
    id_ = tokenizer.id_of(name)
    if id_ is None:
        raise ValueError(f"the tokenizer has no {name}; copy the one of the policy's own training.")
    return id_


def check_tokenizer(tokenizer: JsonTokenizer, config: GrootConfig) -> None:
    """Raise ValueError if a special token is not there."""
    for name in SPECIAL[config.kind]:
        special(tokenizer, name)


def _parts(kind: str, text: str, images: int) -> Iterator[str]:
    """Texts and special tokens in order."""
    start, end, image, image_end = SPECIAL[kind]
    if kind == N1_7:
        yield from (start, "user\n", *(image, image_end) * images, text, end, "\n")
        return
    yield from (start, "system\nYou are a helpful assistant.", end, "\n", start)
    for number in range(1, images + 1):
        yield from ("user\n" * (number == 1) + f"<image {number}>", image, image_end)
    yield from (str([text]), end, "\n", start, "assistant\n")
