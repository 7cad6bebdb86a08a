"""Pre- and post-processing of pi0 and pi0.5, where openpi and lerobot differ.

Both train these networks, and a policy needs the processing of its own trainer. openpi resizes with
antialiasing, as Pillow does, rounds to 8 bits, and takes the time of a flow step from a float32 sum; lerobot
resizes without antialiasing in floating point and multiplies. The prompt is one cleaned line, for pi0.5 with
the state as bins; lerobot's pi0 keeps the instruction unchanged. Numbers are normalised by the training
statistics (norm_stats, lerobot_processors), by openpi in float64 and by lerobot in float32: rounding decides
the bin of a state on an edge.

lerobot before 0.5.0 padded images of [0, 1] with -1, which becomes -3; a policy that it trained needs that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vla_accel_ros.models.processing.pixels import CENTRE, TORCH, PixelRule, fitted
from vla_accel_ros.models.processing.resize import resize_bilinear

EPS = 1e-6
STILL = 1e-5
"""Span, deviation or epsilon of a dimension that did not move in training, but for rounding."""
BIN_EDGES = np.linspace(-1.0, 1.0, 257)[:-1]

Resize = Callable[[Tensor, int], Tensor]
"""uint8 [V, H, W, 3] and S -> float32 [V, 3, S, S] in [-1, 1], on the images' device."""


@dataclass(frozen=True)
class Conventions:
    """time_rule: see models.flow.sampling. resize: of images of one size. pixels: the same as data. words:
    the parts of pi0's prompt, which are tokenised one by one."""

    name: str
    time_rule: str
    resize: Resize
    pixels: PixelRule
    words: Callable[[str], tuple[str, ...]]


def openpi_resize(images: Tensor, size: int) -> Tensor:
    """Antialiased bilinear resize, centred on black: equal to Pillow's bit for bit on a GPU, and within one
    level of it on a CPU, where torch's own kernel is ten times as fast."""
    return padded(images, size, resize_bilinear if images.is_cuda else resize_antialiased)


def resize_antialiased(images: Tensor, height: int, width: int) -> Tensor:
    """uint8 [V, H, W, 3] -> uint8 [V, height, width, 3], bilinear with antialiasing, by torch's kernels.

    The memory format is explicit: without AVX2 and AVX-512, PyTorch's kernel for planar colour is wrong for
    images that become one pixel wide.
    """
    pixels = images.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    return F.interpolate(pixels, size=(height, width), mode="bilinear", antialias=True).permute(0, 2, 3, 1)


def padded(images: Tensor, size: int, resize: Callable[[Tensor, int, int], Tensor]) -> Tensor:
    """As openpi_resize. resize: resizes uint8 [V, H, W, 3] to a height and a width."""
    return to_unit(_on_black(images, size, resize))


def resize_with_pad(image: np.ndarray, size: int) -> np.ndarray:
    """uint8 [H, W, 3] -> uint8 [size, size, 3], aspect kept, the rest black. Returns the image itself if it
    fits."""
    if image.shape[:2] == (size, size):
        return image
    images = torch.from_numpy(np.array(image, order="C"))[None]
    return _on_black(images, size, resize_antialiased)[0].numpy()


def _on_black(images: Tensor, size: int, resize: Callable[[Tensor, int, int], Tensor]) -> Tensor:
    """uint8 [V, H, W, 3] -> uint8 [V, size, size, 3], centred."""
    height, width = images.shape[1:3]
    if (height, width) == (size, size):
        return images
    inner, (top, left) = fitted(height, width, size)
    square = images.new_zeros(len(images), size, size, 3)
    square[:, top : top + inner[0], left : left + inner[1]] = resize(images, *inner)
    return square


def to_unit(images: Tensor) -> Tensor:
    """uint8 [V, S, S, 3] -> float32 [V, 3, S, S] in [-1, 1]."""
    return images.permute(0, 3, 1, 2).float() / 255.0 * 2.0 - 1.0


def lerobot_resize(images: Tensor, size: int, border: float = 0.0) -> Tensor:
    """Bilinear resize of floating-point pixels without antialiasing, centred on `border`, 0 is black."""
    unit = images.permute(0, 3, 1, 2).float() / 255.0
    height, width = images.shape[1:3]
    if (height, width) != (size, size):
        inner, (top, left) = fitted(height, width, size)
        resized = F.interpolate(unit, size=inner, mode="bilinear", align_corners=False).clamp(0.0, 1.0)
        unit = unit.new_full((len(unit), 3, size, size), border)
        unit[:, :, top : top + inner[0], left : left + inner[1]] = resized
    return unit * 2.0 - 1.0


def clean(instruction: str) -> str:
    """Return the instruction on one line, words separated by spaces."""
    return instruction.strip().replace("_", " ").replace("\n", " ")


def state_bins(state: np.ndarray) -> np.ndarray:
    """Normalised state [D] -> bins int [D], 0..255, and -1 for a value below -1 (openpi writes it so)."""
    return np.digitize(state, BIN_EDGES) - 1


def pi05_prompt(instruction: str, state: np.ndarray) -> str:
    """Return the whole prompt of pi0.5. state: normalised, [D]."""
    bins = " ".join(str(bin_) for bin_ in state_bins(state))
    return f"Task: {clean(instruction)}, State: {bins};\nAction: "


def _openpi_words(instruction: str) -> tuple[str, ...]:
    return clean(instruction), "\n"


def _lerobot_words(instruction: str) -> tuple[str, ...]:
    return (instruction if instruction.endswith("\n") else f"{instruction}\n",)


_LEVELS = torch.arange(256, dtype=torch.uint8)[None, None, :, None].expand(1, 1, 256, 3)
_OPENPI_PIXELS = PixelRule("bilinear", CENTRE, to_unit(_LEVELS)[0, :, 0])
_LEROBOT_PIXELS = PixelRule(TORCH, CENTRE, (_LEVELS[0, 0].float() / 255.0).t().contiguous())
OPENPI = Conventions("openpi", "openpi", openpi_resize, _OPENPI_PIXELS, _openpi_words)
LEROBOT = Conventions("lerobot", "lerobot", lerobot_resize, _LEROBOT_PIXELS, _lerobot_words)
BEFORE_0_5 = replace(
    LEROBOT,
    name="lerobot before 0.5",
    resize=partial(lerobot_resize, border=-1.0),
    pixels=replace(_LEROBOT_PIXELS, border=-3.0),
)


@dataclass(frozen=True)
class Normalizer:
    """An affine map for each dimension: normalize(x) = (x - shift) / scale * gain + offset, and its exact
    inverse.

    shift, scale: float64 [D] of openpi or float32 [D] of lerobot; both directions compute in that dtype.
    Dimensions beyond D pass unchanged, as in openpi. Both directions include its epsilon, so they are
    inverse. The order of operations is openpi's too: a joint at its lowest value must become exactly -1, not
    a rounding below it, to be in bin 0.
    """

    shift: np.ndarray
    scale: np.ndarray
    gain: float = 1.0
    offset: float = 0.0

    @classmethod
    def mean_std(cls, mean: np.ndarray, std: np.ndarray) -> Normalizer:
        """(x - mean) / (std + eps): pi0."""
        return cls(np.asarray(mean, np.float64), np.asarray(std, np.float64) + EPS)

    @classmethod
    def quantile(cls, q01: np.ndarray, q99: np.ndarray) -> Normalizer:
        """(x - q01) / (q99 - q01 + eps) * 2 - 1: everything after pi0."""
        low, high = np.asarray(q01, np.float64), np.asarray(q99, np.float64)
        return cls(low, high - low + EPS, gain=2.0, offset=-1.0)

    @classmethod
    def identity(cls) -> Normalizer:
        """A map that changes nothing."""
        return cls(np.zeros(0), np.ones(0))

    @property
    def size(self) -> int:
        """Number of dimensions with statistics."""
        return len(self.shift)

    @property
    def _maps_to_range(self) -> bool:
        """Whether gain and offset change anything."""
        return self.gain != 1.0 or self.offset != 0.0

    def normalize(self, x: np.ndarray, dtype: type[np.floating[Any]] | None = None) -> np.ndarray:
        """[..., D'] -> [..., D'] in this dtype, None = the statistics'; infinite where it exceeds that."""
        with np.errstate(over="ignore"):
            out, dims = np.array(x, self.shift.dtype), min(x.shape[-1], self.size)
            part = out if dims == x.shape[-1] else out[..., :dims]
            part -= self.shift[:dims]
            part /= self.scale[:dims]
            if self._maps_to_range:
                part *= self.gain
                part += self.offset
            return out if dtype is None else out.astype(dtype)

    def as_trained(self, x: np.ndarray) -> np.ndarray:
        """[..., D] -> a copy in which dimensions that did not move in training are where they were then. Any
        other place is thousands of deviations away for the network."""
        out, dims = np.array(x), min(x.shape[-1], self.size)
        if self._still is not None:
            out[..., :dims] = np.where(self._still[:dims], self.shift[:dims], out[..., :dims])
        return out

    def padded(self, x: np.ndarray) -> np.ndarray:
        """[D'] -> [D] if the statistics of all dimensions from D' on are zero, as openpi's are where it
        filled the states up before it counted them; else x itself."""
        return np.pad(x, (0, self.size - len(x))) if self._filled <= len(x) < self.size else x

    @cached_property
    def _filled(self) -> int:
        """Number of dimensions before those whose statistics are all zero."""
        filled = np.flatnonzero((np.abs(self.shift) > STILL) | (self.scale > STILL))
        return int(filled[-1]) + 1 if len(filled) else self.size

    @property
    def still(self) -> np.ndarray:
        """bool [D]: which dimensions did not move in training."""
        return self.scale[: self.size] < STILL

    @cached_property
    def _still(self) -> np.ndarray | None:
        """bool [D]: which dimensions did not move in training, None if all did."""
        return self.still if self.still.any() else None

    def unnormalize(self, x: np.ndarray) -> np.ndarray:
        """[..., D'] -> [..., D'] in the statistics' dtype."""
        dims, dtype = min(x.shape[-1], self.size), self.shift.dtype
        if not dims:
            return np.array(x, dtype)
        if self._maps_to_range:
            part = np.array(x[..., :dims], dtype)
            part -= self.offset
            part /= self.gain
            part *= self.scale[:dims]
        else:  # few operations, because actions wait for this
            part = np.multiply(x[..., :dims], self.scale[:dims], dtype=dtype)
        part += self.shift[:dims]
        return part if dims == x.shape[-1] else np.concatenate((part, x[..., dims:]), axis=-1, dtype=dtype)


IDENTITIES = (Normalizer.identity(), Normalizer.identity())
"""Of state and actions, where nothing is normalised."""
