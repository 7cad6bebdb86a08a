"""Sizes of a pi0-FAST: a SigLIP encoder and one Gemma stack, which writes the actions.

Field names that the engine reads are those of PiConfig. The JSON form is stored in `config.json` under the
key `vla_accel_ros`; lerobot's folders lack it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from vla_accel_ros.models.config import (
    TRAINED_AS,
    GemmaConfig,
    Sizes,
    VisionConfig,
    check_image_names,
    check_whole,
)
from vla_accel_ros.models.micro_requests import Chain, Leaf, MicroRequest

ENDS = 2
"""Ids around a prompt: the beginning of a sequence, which comes again at its end."""


@dataclass(frozen=True)
class PiFastConfig(Sizes):
    """A whole network.

    action_dim: channels of an action as the robot has them. state_dim: of the state. horizon: actions in a
    chunk. max_action_tokens: most tokens of a chunk. max_prompt: most language tokens in a prompt.
    image_names: the cameras in prefix order. openpi: whether it was trained by openpi, whose prompt has small
    letters and no id at its end, where cameras that are absent are black pictures, the head is the token
    embedding, and generated tokens leave out one position.
    """

    vision: VisionConfig
    prefix: GemmaConfig
    vocab: int
    action_dim: int
    state_dim: int
    horizon: int
    max_action_tokens: int
    max_prompt: int
    image_names: tuple[str, ...]
    kind: str = "pi0_fast"
    openpi: bool = False

    ABSENT: ClassVar[Mapping[str, Any]] = {"openpi": False}
    BESIDE: ClassVar[tuple[str, ...]] = (TRAINED_AS,)

    def __post_init__(self) -> None:
        if self.kind != "pi0_fast":
            raise ValueError(f"kind is '{self.kind}'; these are the sizes of 'pi0_fast'.")
        check_whole(self, "config")
        check_image_names(self.image_names)

    @cached_property
    def chain(self) -> Chain:
        """The family's micro-requests. The state is in the prompt, which images and words see both ways, so
        nothing of a prefix outlives its frame."""
        seen = Leaf("seen", (len(self.image_names) * self.image_tokens, self.prefix.width))
        hidden = Leaf("hidden", (self.prefix.width,))
        return Chain(
            (
                MicroRequest("encode", ("pixels",), (seen,)),
                MicroRequest("prefill", ("seen", "words"), (Leaf("kv"), hidden)),
                MicroRequest("decode", ("kv", "hidden"), (Leaf("actions"),), kept="step"),
            )
        )

    @property
    def image_tokens(self) -> int:
        """Prefix tokens of one image."""
        return self.vision.tokens

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens in a prefix."""
        return len(self.image_names) * self.image_tokens + self.max_prompt + ENDS


PI0_FAST = PiFastConfig(
    vision=VisionConfig(width=1152, depth=27, mlp=4304, heads=16, image_size=224, patch=14),
    prefix=GemmaConfig(width=2048, depth=18, mlp=16384, heads=8, kv_heads=1, head_dim=256),
    vocab=257152,
    action_dim=7,
    state_dim=32,
    horizon=50,
    max_action_tokens=256,
    max_prompt=200,
    image_names=("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"),
)
"""The published model, for an arm of seven channels."""
