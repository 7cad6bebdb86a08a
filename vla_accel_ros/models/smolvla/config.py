"""Sizes of a SmolVLA model: a SigLIP tower, a connector, a Llama stack, an action expert.

All modules take their shapes from here, so a recorded test model of 300 k parameters and the published one of
450 M share one code. Field names that the engine reads are those of PiConfig. The JSON form is stored in
`config.json` under the key `vla_accel_ros`; lerobot's folders lack it, and sizes.py infers it for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from vla_accel_ros.models.config import (
    LlamaConfig,
    Sizes,
    VisionConfig,
    check_expert,
    check_image_names,
    check_whole,
)
from vla_accel_ros.models.micro_requests import Chain, Leaf, MicroRequest

NORM_EPS = 1e-5
UNIT = 64
"""Columns of a tile of the products of few rows."""


@dataclass(frozen=True)
class SmolVLAConfig(Sizes):
    """A whole SmolVLA network.

    shuffle: the connector joins shuffle x shuffle patches into one image token.
    prefix, expert: the kept layers of the language stack, and the action expert. They share depth and head
        shapes, because each layer of the expert reads the keys and values of the same layer of the prefix.
    self_every: in layers 0, self_every, 2 * self_every, ... the actions also attend to one another; in the
        others they attend only to the prefix, through projections of its keys and values.
    action_dim, state_dim: padded sizes of the network. horizon: actions in a chunk.
    max_prompt: most language tokens in a prompt. image_names: the cameras in prefix order.
    """

    vision: VisionConfig
    shuffle: int
    prefix: LlamaConfig
    expert: LlamaConfig
    self_every: int
    vocab: int
    action_dim: int
    state_dim: int
    horizon: int
    max_prompt: int
    image_names: tuple[str, ...]
    kind: str = "smolvla"

    def __post_init__(self) -> None:
        if self.kind != "smolvla":
            raise ValueError(f"kind is '{self.kind}'; these are the sizes of 'smolvla'.")
        check_whole(self, "config")
        check_expert(self.prefix, self.expert)
        if (self.vision.image_size // self.vision.patch) % self.shuffle:
            raise ValueError(
                f"shuffle {self.shuffle} does not divide the {self.vision.image_size // self.vision.patch} "
                "patches of a row; make it a divisor."
            )
        check_image_names(self.image_names)

    @cached_property
    def chain(self) -> Chain:
        """The family's micro-requests; the state is in the prefix, and the layers that write text were cut
        off."""
        seen = Leaf("seen", (len(self.image_names) * self.image_tokens, self.prefix.width))
        return Chain(
            (
                MicroRequest("encode", ("pixels",), (seen,)),
                MicroRequest("prefill", ("seen", "words", "state"), (Leaf("kv"),)),
                MicroRequest("denoise", ("x", "t", "kv"), (Leaf("actions"),), kept="step"),
            ),
            capturable=True,
        )

    @property
    def image_tokens(self) -> int:
        """Prefix tokens of one image."""
        return self.vision.tokens // self.shuffle**2

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens in a prefix: every camera, the longest prompt and the state."""
        return len(self.image_names) * self.image_tokens + self.max_prompt + 1

    @property
    def padded_width(self) -> int:
        """The expert's width as stages have it: whole tiles."""
        return -(-self.expert.width // UNIT) * UNIT

    @property
    def crossing(self) -> tuple[int, ...]:
        """The layers of the expert in which the actions attend only to the prefix."""
        return tuple(layer for layer in range(self.expert.depth) if layer % self.self_every)


SMOLVLA = SmolVLAConfig(
    vision=VisionConfig(width=768, depth=12, mlp=3072, heads=12, image_size=512, patch=16),
    shuffle=4,
    prefix=LlamaConfig(960, 16, 2560, heads=15, kv_heads=5, head_dim=64, norm_eps=NORM_EPS),
    expert=LlamaConfig(720, 16, 2048, heads=15, kv_heads=5, head_dim=64, norm_eps=NORM_EPS),
    self_every=2,
    vocab=49280,
    action_dim=32,
    state_dim=32,
    horizon=50,
    max_prompt=48,
    image_names=("camera1", "camera2", "camera3"),
)
"""The published smolvla_base: SmolVLM2-500M cut to 16 layers, and its expert."""
