"""Sizes of a GR00T network: an image tower, the first layers of a Qwen3, a mixer, a diffusion transformer.

Both versions share one class, because they differ in few numbers: N1.5 has an image of fixed size, positions
in one dimension, future tokens, and blocks that read every token of the prefix; N1.7 has images of any shape,
features that skip into the language model (`taps`), and blocks that read image and text tokens by turns. The
JSON form is stored in `config.json` under the key `vla_accel_ros`; published folders lack it (sizes.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from vla_accel_ros.models.config import (
    BlocksConfig,
    GemmaConfig,
    LlamaConfig,
    Sizes,
    VisionConfig,
    check_image_names,
    check_whole,
)
from vla_accel_ros.models.micro_requests import Chain, Leaf, MicroRequest

N1_5, N1_7 = "groot_n1_5", "groot_n1_7"
KINDS = (N1_5, N1_7)
MOST_ASPECT = 2
"""The longest image beside its shorter side that the memory of a prefix has room for."""


@dataclass(frozen=True)
class GrootConfig(Sizes):
    """A whole GR00T network.

    vision: the tower; of N1.7 image_size is that of its learned positions, between which it interpolates.
    merge: merge x merge patches become one token. taps: layers of the tower whose features are added to the
        image tokens after the language model's first layers. connector: linear layers from the tower to text.
    text: the kept layers. theta: base of the rotary positions; sections: how many of their frequencies belong
        to time, row and column, () for positions in one dimension.
    mixer: self-attention over the prefix. dit: the diffusion transformer; dit_out: width of its output.
    hidden: width inside the state encoders and action decoders, of which every embodiment has its own.
    future: learned tokens between state and actions. positions: rows of the actions' position embedding.
    buckets: distinct flow times. image_tokens: most tokens of one image. max_prompt: most tokens of the rest
        of a prompt. image_names: the cameras of all embodiments; views: the most that one of them has.
    """

    kind: str
    vision: VisionConfig
    merge: int
    taps: tuple[int, ...]
    connector: int
    text: LlamaConfig
    theta: float
    sections: tuple[int, ...]
    vocab: int
    image_token: int
    mixer: BlocksConfig
    dit: BlocksConfig
    dit_out: int
    hidden: int
    embodiments: int
    future: int
    positions: int
    buckets: int
    action_dim: int
    state_dim: int
    horizon: int
    image_tokens: int
    max_prompt: int
    image_names: tuple[str, ...]
    views: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is '{self.kind}'; use one of {KINDS}.")
        check_whole(self, "config", or_zero=("future", "image_token"))
        check_image_names(self.image_names)
        if self.dit.depth % (4 if self.alternates else 2):
            raise ValueError(
                f"dit.depth is {self.dit.depth}; blocks come in {'fours' if self.alternates else 'pairs'}."
            )
        if self.horizon > self.positions:
            raise ValueError(
                f"horizon is {self.horizon}, but there are {self.positions} positions of actions."
            )
        if self.dit.width % 2:
            raise ValueError(f"dit.width {self.dit.width} is odd; the time embedding needs an even one.")
        if self.sections and 2 * sum(self.sections) != self.text.head_dim:
            raise ValueError(
                f"sections {self.sections} are not the {self.text.head_dim // 2} frequencies of a head."
            )
        if len(self.taps) > self.text.depth or any(not 0 <= tap < self.vision.depth for tap in self.taps):
            raise ValueError(f"taps {self.taps} do not fit {self.vision.depth} and {self.text.depth} layers.")

    @property
    def alternates(self) -> bool:
        """Whether blocks read text and image tokens by turns, instead of all."""
        return self.kind == N1_7

    @cached_property
    def chain(self) -> Chain:
        """The family's micro-requests. sizes: height and width of each image, which matter if they differ;
        embodiment: the robot's number; image: which tokens of the prefix are of images."""
        tokens, sizes = self.max_tokens, Leaf("sizes", (self.views, 2), "int64")
        image, embodiment = Leaf("image", (tokens,), "bool"), Leaf("embodiment", (1,), "int64")
        reads = ("x", "t", "kv", "image", "state", "embodiment")
        return Chain(
            (
                MicroRequest("encode", ("pixels", "sizes"), (Leaf("seen"), Leaf("taps"))),
                MicroRequest("prefill", ("seen", "taps", "words", "sizes"), (Leaf("kv"), image)),
                MicroRequest("denoise", reads, (Leaf("actions"),), kept="step"),
            ),
            inputs=(sizes, embodiment),
            capturable=True,
        )

    @property
    def prefix(self) -> GemmaConfig:
        """What a prefix keeps: keys and values of the blocks that read it."""
        dit = self.dit
        return GemmaConfig(self.text.width, dit.depth // 2, dit.mlp, dit.heads, dit.heads, dit.head_dim)

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens in a prefix: every camera of an embodiment and the longest prompt."""
        return self.views * self.image_tokens + self.max_prompt


_CAMERAS = ("camera1", "camera2", "camera3")
_MIXER, _BLOCKS = BlocksConfig(2048, 4, 8192, 32, 64), BlocksConfig(1536, 32, 6144, 32, 48)

GROOT_N1_7 = GrootConfig(
    kind=N1_7,
    vision=VisionConfig(width=1024, depth=24, mlp=4096, heads=16, image_size=768, patch=16),
    merge=2,
    taps=(5, 11, 17),
    connector=2,
    text=LlamaConfig(2048, 16, 6144, heads=16, kv_heads=8, head_dim=128),
    theta=5e6,
    sections=(24, 20, 20),
    vocab=151936,
    image_token=151655,
    mixer=_MIXER,
    dit=_BLOCKS,
    dit_out=1024,
    hidden=1024,
    embodiments=32,
    future=0,
    positions=1024,
    buckets=1000,
    action_dim=132,
    state_dim=132,
    horizon=40,
    image_tokens=64,
    max_prompt=192,
    image_names=_CAMERAS,
    views=3,
)
"""The published GR00T-N1.7-3B, with square images."""
GROOT_N1_5 = replace(
    GROOT_N1_7,
    kind=N1_5,
    vision=VisionConfig(width=1152, depth=27, mlp=4304, heads=16, image_size=224, patch=14),
    merge=1,
    taps=(),
    connector=1,
    text=LlamaConfig(2048, 12, 6144, heads=16, kv_heads=8, head_dim=128),
    theta=1e6,
    sections=(),
    vocab=151680,
    image_token=151669,
    dit=replace(_BLOCKS, depth=16),
    future=32,
    action_dim=32,
    state_dim=64,
    horizon=16,
    image_tokens=256,
)
"""The published GR00T-N1.5-3B."""
