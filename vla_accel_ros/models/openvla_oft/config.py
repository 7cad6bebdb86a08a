"""Sizes of an OpenVLA-OFT: OpenVLA's, and those of its chunk, which no file of a published folder says.

The authors' code takes the length of a chunk and the normalisation from the words libero, bridge or aloha in
its command line. They are asked for here (`trained_as`), unless the name of the data set has such a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from vla_accel_ros.models.config import check_image_names
from vla_accel_ros.models.micro_requests import Chain, Leaf, MicroRequest
from vla_accel_ros.models.openvla.config import OPENVLA_7B, OpenVLAConfig

FILM = ("dino_film", "siglip_film")
"""What each tower's blocks get of an instruction."""
QUANTILES, RANGE = "q01 q99", "min max"
"""What is mapped to -1 and 1, by the names in the statistics."""

PLATFORMS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "libero": (8, QUANTILES, ("full_image", "wrist_image")),
    "bridge": (5, QUANTILES, ("full_image",)),
    "aloha": (25, RANGE, ("full_image", "left_wrist_image", "right_wrist_image")),
}
"""The authors' settings: actions in a chunk, bounds, images in the order of training."""


@dataclass(frozen=True)
class OpenVLAOFTConfig(OpenVLAConfig):
    """A whole OpenVLA-OFT network. image_names: its cameras in the order of training.

    horizon: actions in a chunk. action_dim: numbers of an action. state_dim: of the state, 0 if the network
    takes none. bounds: QUANTILES or RANGE. film: whether the instruction modulates the towers' blocks.
    """

    image_names: tuple[str, ...] = PLATFORMS["libero"][2]
    kind: str = "openvla_oft"
    horizon: int = 8
    action_dim: int = 7
    state_dim: int = 8
    bounds: str = QUANTILES
    film: bool = False

    KIND: ClassVar[str] = "openvla_oft"
    OR_ZERO: ClassVar[tuple[str, ...]] = ("registers", "state_dim")
    ABSENT: ClassVar[Mapping[str, Any]] = {"film": False}

    def _check_cameras(self) -> None:
        check_image_names(self.image_names)
        if self.bounds not in (QUANTILES, RANGE):
            raise ValueError(f"bounds is '{self.bounds}'; use '{QUANTILES}' or '{RANGE}'.")

    @cached_property
    def chain(self) -> Chain:
        """The family's micro-requests. Everything attends to everything, so only image tokens are kept, and
        what an instruction does to the towers; the newest joints go with each chunk."""
        seen = Leaf("seen", (len(self.image_names) * self.dino.tokens, self.prefix.width))
        state = ("state",) if self.state_dim else ()
        towers = (self.dino, self.siglip) if self.film else ()
        film = tuple(Leaf(name, (v.depth - 1, 2, v.width)) for name, v in zip(FILM, towers, strict=False))
        modulation = (MicroRequest("text_encode", ("words",), film, kept="instruction"),) if film else ()
        encode = MicroRequest("encode", ("pixels", *(leaf.name for leaf in film)), (seen,))
        forward = MicroRequest("forward", ("seen", "words", *state), (Leaf("actions"),), kept="chunk")
        return Chain((*modulation, encode, forward), capturable=True, least_images=len(self.image_names))

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens before the actions."""
        return len(self.image_names) * self.dino.tokens + self.max_prompt + bool(self.state_dim)

    @classmethod
    def of(cls, openvla: OpenVLAConfig, **changes: Any) -> OpenVLAOFTConfig:
        """The sizes of an OpenVLA, with those of the chunk."""
        shared = {name: value for name, value in vars(openvla).items() if name in FIELDS - {"kind"}}
        return cls(**{**shared, **changes})


FIELDS = OpenVLAConfig.__dataclass_fields__.keys()

OPENVLA_OFT_LIBERO = OpenVLAOFTConfig.of(OPENVLA_7B, image_names=PLATFORMS["libero"][2])
"""The published networks for LIBERO."""
OPENVLA_OFT_ALOHA = OpenVLAOFTConfig.of(
    OPENVLA_7B,
    image_names=PLATFORMS["aloha"][2],
    horizon=25,
    action_dim=14,
    state_dim=14,
    bounds=RANGE,
    film=True,
)
"""Those for ALOHA."""
