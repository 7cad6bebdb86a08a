"""Sizes of encoders that families of video models share: T5's of text, and Wan's VAE of pictures."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from vla_accel_ros.models.config import check_whole


@dataclass(frozen=True)
class T5Config:
    """A T5 encoder. buckets: distances with a bias of their own, up to max_distance. gated: whether the MLP
    has a gate. biases: layers that have a table of biases."""

    width: int
    depth: int
    heads: int
    head_dim: int
    mlp: int
    vocab: int
    buckets: int
    max_distance: int
    gated: bool
    biases: int
    eps: float

    def __post_init__(self) -> None:
        check_whole(self, "config.text")
        if self.biases not in (1, self.depth) or not isinstance(self.eps, float) or not 0 < self.eps < 1:
            raise ValueError(
                f"config.text: biases is {self.biases} and eps {self.eps!r}; give 1 or {self.depth}, and a "
                "number between 0 and 1."
            )
        if self.buckets % 2 or not 4 <= self.buckets < 4 * self.max_distance:
            raise ValueError(
                f"config.text: buckets is {self.buckets} and max_distance {self.max_distance}; give an even "
                "number of at least 4, and a distance of more than a quarter of it."
            )


@dataclass(frozen=True)
class VAEConfig:
    """The encoder of Wan's VAE. multiples: of the width, by level; blocks: in each. temporal: whether a
    level's shortcut averages two frames. patch: side of a square of pixels that becomes channels. mean, std:
    of the latents, one for each of their channels."""

    width: int
    multiples: tuple[int, ...]
    blocks: int
    temporal: tuple[bool, ...]
    patch: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        check_whole(self, "config.vae")
        if not self.multiples or any(not isinstance(m, int) or not 0 < m < 1024 for m in self.multiples):
            raise ValueError(f"config.vae.multiples is {self.multiples}; give whole numbers from 1.")
        if len(self.temporal) != len(self.multiples) - 1:
            raise ValueError(
                f"config.vae.temporal {self.temporal} must be one fewer than multiples {self.multiples}."
            )
        if len(self.mean) != len(self.std) or not all(map(isfinite, self.mean + self.std)) or 0 in self.std:
            raise ValueError(
                f"config.vae: mean has {len(self.mean)} and std {len(self.std)} numbers; they must be as "
                "many and finite, and no std 0."
            )
        for level, (width, outer) in enumerate(zip(self.widths, self.widths[1:])):
            if width * self.shrinks(level) % outer:
                raise ValueError(f"config.vae: level {level} cannot average {width} channels to {outer}.")

    @property
    def channels(self) -> int:
        """Of the latents."""
        return len(self.mean)

    @property
    def widths(self) -> tuple[int, ...]:
        """Before each level, and after the last."""
        return tuple(self.width * multiple for multiple in (1, *self.multiples))

    @property
    def stride(self) -> int:
        """Pixels from one latent to the next."""
        return self.patch << (len(self.multiples) - 1)

    def shrinks(self, level: int) -> int:
        """How many places of frames, rows and columns the level's shortcut averages."""
        return 1 if level == len(self.temporal) else 4 * (1 + self.temporal[level])
