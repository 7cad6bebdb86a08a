"""A GR00T policy: the network, and the conversion between it and a robot of one embodiment.

Several embodiments share one network: each has its own weights at the ends, chosen by its number, which goes
with the frame, and its own units, cameras and steps. Images are resized on the host (pixels.py). The chunk
that a robot gets has the steps that its embodiment was trained with, which may be fewer than the network's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.groot.config import GrootConfig
from vla_accel_ros.models.groot.embodiment import Settings
from vla_accel_ros.models.groot.model import Groot, Prompt
from vla_accel_ros.models.groot.prompt import breaks_of, make_words
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.micro_requests import Chain
from vla_accel_ros.models.network_policy import HostInputs
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.pixels import CENTRED, SQUEEZED, PixelRule, centred
from vla_accel_ros.models.text.tokenizer import JsonTokenizer
from vla_accel_ros.types import Observation

PIXELS = PixelRule("bicubic", SQUEEZED, CENTRED)
"""The network's levels; resizing is done before."""


@dataclass(frozen=True)
class GrootPolicy(Policy):
    """The network and its pre- and post-processing; see Policy. settings: of the embodiment. The normalizers
    are not used: `settings.units` has both."""

    model: Groot  # type: ignore[assignment]
    tokenizer: JsonTokenizer
    settings: Settings = field(kw_only=True)
    pixel_rule: ClassVar[PixelRule] = PIXELS

    @cached_property
    def config(self) -> GrootConfig:  # type: ignore[override]
        """The network's sizes, with the embodiment's cameras."""
        return replace(self.model.config, image_names=self.settings.cameras)

    @cached_property
    def chain(self) -> Chain:
        """Its micro-requests; captured only if all images have one size."""
        return replace(self.model.config.chain, capturable=self.settings.geometry.side is not None)

    @cached_property
    def _number(self) -> Tensor:
        return torch.tensor([self.settings.number])

    @property
    def image_size(self) -> int:
        """The shorter side of an image as the network gets it."""
        return self.settings.geometry.side or self.settings.geometry.edge

    def host_images(self, observation: Observation) -> tuple[np.ndarray, ...]:
        """Return the images of the cameras present as the network gets them, uint8 [h, w, 3] each. Raises
        ValueError as `inputs` does."""
        geometry, images = self.settings.geometry, []
        for name in self._cameras(observation):
            image = geometry.resized(observation.images[name])
            tokens = math.prod(self._grid(image.shape))
            if tokens > self.config.image_tokens:
                height, width = observation.images[name].shape[:2]
                raise ValueError(
                    f"observation.images['{name}'] of {height} x {width} pixels makes {tokens} tokens; "
                    f"there is room for {self.config.image_tokens}, so crop it to a shape nearer to a square."
                )
            images.append(image)
        return tuple(images)

    def host_inputs(self, observation: Observation) -> HostInputs:
        """Return an observation's checked inputs on the host. Raises ValueError as `inputs` does."""
        self._check_state(observation.state)
        names, images = self._cameras(observation), self.host_images(observation)
        words = self._words(observation.instruction, len(images))
        sizes = torch.zeros(self.config.views, 2, dtype=torch.int64)
        sizes[: len(images)] = torch.tensor([image.shape[:2] for image in images])
        return HostInputs(images, names, words, {"sizes": sizes, "embodiment": self._number})

    def resized(self, images: Sequence[Tensor]) -> Tensor:
        """Return the network's pixels float32 [V, 3, H, W] from images uint8 [H, W, 3] on its device; if
        their sizes differ, one vector of all."""
        pixels = [centred(image.permute(2, 0, 1)) for image in images]
        alike = len({image.shape for image in pixels}) == 1
        return torch.stack(pixels) if alike else torch.cat([image.flatten() for image in pixels])

    def encode(self, pixels: Tensor, sizes: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        """See GrootConfig.chain. Leaves seen [n, W] and taps [taps, n, W], one image after another."""
        if pixels.ndim == 4:
            images = [pixels]
        else:
            shapes = [(1, 3, *size) for size in sizes.tolist() if size[0]]
            parts = pixels.split([math.prod(shape) for shape in shapes])
            images = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        encoded = [self.model.encode(image) for image in images]
        seen = torch.cat([tokens.flatten(0, 1) for tokens, _ in encoded])
        return {
            "seen": seen,
            "taps": torch.cat([taps.transpose(0, 1).flatten(1, 2) for _, taps in encoded], 1),
        }

    def prefill(  # type: ignore[override]
        self, seen: Tensor, taps: Tensor, words: Tensor, sizes: Tensor
    ) -> dict[str, Any]:
        """See GrootConfig.chain."""
        prompt = self.embed_prompt(seen, taps, words, sizes)
        return {"kv": self.model.prefix(self.model.features(prompt)), "image": prompt.image}

    def embed_prompt(self, seen: Tensor, taps: Tensor, words: Tensor, sizes: Tensor) -> Prompt:
        """Put the tokens of the images among those of the words. Reads `sizes` on the host only if images may
        have several."""
        side = self.settings.geometry.side
        if side is None:
            grids = [self._grid(size) for size in sizes.tolist() if size[0]]
        else:
            grid = self._grid((side, side))
            grids = [grid] * (len(seen) // math.prod(grid))
        counts = [rows * columns for rows, columns in grids]
        images = [part.unflatten(0, grid) for part, grid in zip(seen.split(counts), grids, strict=True)]
        features = [part.unflatten(1, grid) for part, grid in zip(taps.split(counts, 1), grids, strict=True)]
        return self.model.embed(words, images, features, self._breaks(len(images)))

    def denoise(  # type: ignore[override]
        self, x: Tensor, t: Tensor, kv: KV, image: Tensor, state: Tensor, embodiment: Tensor
    ) -> Tensor:
        """See GrootConfig.chain."""
        return self.model.velocity(x, t, state, kv, embodiment, image[None])

    def prompt(self, instruction: str, state: np.ndarray) -> list[int]:
        """Return the prompt's token ids without those of images, for all cameras. Raises ValueError if there
        are more than max_prompt."""
        return self._words(instruction, len(self.settings.cameras))

    def normalized_state(self, state: np.ndarray) -> Tensor:
        """state [D], not normalised -> float32 [state_dim] on the host, zero-padded. Raises ValueError as
        `inputs` does."""
        self._check_state(state)
        units, padded = self.settings.units, np.zeros(self.config.state_dim, np.float32)
        padded[: len(state)] = units.state.normalize(state) if units.state.size else state
        return torch.from_numpy(padded)

    def actions(self, raw: Tensor, state: np.ndarray) -> np.ndarray:
        """Convert raw network actions [H, A] to absolute targets float32 [steps, D]; see Policy.actions."""
        rows = raw.detach().cpu().float().numpy()[:, : self.joints]
        return self.settings.units.to_robot(rows, state).astype(np.float32)

    def raw_actions(self, actions: np.ndarray, state: np.ndarray) -> Tensor:
        """Inverse of actions: absolute targets [h, D] -> float32 [h, A] on the host, zero-padded."""
        raw = np.zeros((len(actions), self.config.action_dim), np.float32)
        raw[:, : self.joints] = self.settings.units.to_network(actions, state)
        return torch.from_numpy(raw)

    def _words(self, instruction: str, images: int) -> list[int]:
        return make_words(self.tokenizer, self.config, instruction, images, self.settings.formal)

    def _breaks(self, images: int) -> tuple[int, ...]:
        return breaks_of(self._words("", images), self.tokenizer, self.config.kind)

    def _grid(self, size: Sequence[int]) -> tuple[int, int]:
        """Rows and columns of the tokens of an image of this height and width."""
        block = self.config.vision.patch * self.config.merge
        return size[0] // block, size[1] // block

    def _check_shape(self, state: np.ndarray) -> None:
        super()._check_shape(state)
        size, needed = self.settings.units.state.size, self.settings.units.least_state
        if size and not needed <= len(state) <= size:
            raise ValueError(
                f"observation.state has {len(state)} values; the embodiment '{self.settings.tag}' has {size}"
                + (f", at least {needed} of which its relative actions need." if needed > 1 else ".")
            )
