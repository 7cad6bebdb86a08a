"""FAST: a chunk of actions as few tokens (Pertsch et al., "FAST: Efficient Action Tokenization", 2025).

The cosine transform of each channel over time, scaled and rounded, is a string with a character for each
number, all channels of the slowest wave first; byte pairs of that string are the tokens. In PaliGemma's
vocabulary they stand backwards before its last ids. A number of characters that does not fill a chunk is cut,
or filled up with zeros, as lerobot does it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.fields import check_fields
from vla_accel_ros.models.json_file import check_bytes, read_json
from vla_accel_ros.models.text.tokenizer import read_tokenizer

FIELDS = ("processor_class", "auto_map", "vocab_size")
OPTIONAL = {"action_dim": None, "time_horizon": None}
MOST_BYTES = 16 << 20
MOST_COEFFICIENT = 1 << 15
"""Largest number that a character may stand for: a token that is no whole character gives a greater one."""


class FastTokenizer:
    """The tokenizer of a folder with `tokenizer.json` and `processor_config.json` (scale, min_token).

    Raises ValueError in one sentence if a file is missing or malformed.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / "processor_config.json"
        data: Any = read_json(file)
        check_fields(data, f"{file}: ", (*FIELDS, *OPTIONAL, "scale", "min_token"), {})
        self.scale, self.lowest = (self._whole(file, data, name) for name in ("scale", "min_token"))
        if self.scale < 1:
            raise ValueError(f"{file}: scale is {self.scale}; it must be at least 1.")
        check_bytes(folder / "tokenizer.json", MOST_BYTES)
        self._pairs = read_tokenizer(folder / "tokenizer.json")
        self.size: int = self._pairs.get_vocab_size()

    @staticmethod
    def _whole(file: Path, data: Any, name: str) -> int:
        value = data.get(name)
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
        if not whole or abs(value) > MOST_COEFFICIENT:
            raise ValueError(f"{file}: {name} is {value!r}; it must be a whole number.")
        return int(value)

    def encode(self, actions: np.ndarray) -> list[int]:
        """Return the tokens of a chunk [H, D], normalised."""
        waves = cosines(len(actions)) @ np.asarray(actions, np.float64)
        numbers = np.maximum(np.around(waves * self.scale).astype(int) - self.lowest, 0)
        text = "".join(map(chr, numbers.ravel().tolist()))
        return list(self._pairs.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int], horizon: int, dims: int, whole: bool = False) -> np.ndarray:
        """Return the chunk float64 [horizon, dims] of tokens, normalised. Raises ValueError for what is no
        token, or stands for no number; for more or fewer numbers than the chunk's if it must be `whole`."""
        strangers = [token for token in tokens if not 0 <= token < self.size]
        if strangers:
            raise ValueError(
                f"the model wrote {strangers[0]}, which is none of the {self.size} action tokens."
            )
        text: str = self._pairs.decode(list(tokens), skip_special_tokens=False)
        numbers = np.array([ord(character) for character in text], np.float64) + self.lowest
        if len(numbers) and np.abs(numbers).max() > MOST_COEFFICIENT:
            raise ValueError("the model wrote action tokens that are no whole characters.")
        size = horizon * dims
        if whole and len(numbers) != size:
            raise ValueError(f"the model wrote {len(numbers)} numbers where a chunk has {size}.")
        numbers = np.pad(numbers[:size], (0, max(0, size - len(numbers))))
        waves: np.ndarray = cosines(horizon).T @ (numbers.reshape(horizon, dims) / self.scale)
        return waves


def cosines(length: int) -> np.ndarray:
    """Return the orthonormal cosine transform (DCT-II) float64 [length, length]: rows are waves."""
    k, t = np.arange(length)[:, None], np.arange(length)[None]
    waves = np.sqrt(2.0 / length) * np.cos(math.pi * k * (2 * t + 1) / (2 * length))
    waves[0] /= math.sqrt(2.0)
    return waves
