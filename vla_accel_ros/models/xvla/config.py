"""Sizes of an X-VLA: a DaViT, a BART encoder, a transformer over actions, prefix and soft prompts.

All modules take their shapes from here. Field names that the engine reads are those of PiConfig. The JSON
form is stored in `config.json` under the key `vla_accel_ros`; lerobot's folders lack it, and sizes.py infers
it for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from vla_accel_ros.models.config import Sizes, check_image_names, check_whole
from vla_accel_ros.models.micro_requests import Chain, Leaf, MicroRequest


@dataclass(frozen=True)
class DaViTConfig:
    """Four stages of attention over windows and over channels. widths, depths, heads, groups: of each stage.
    window: side of a window. max_positions: rows and columns that have a learned position."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    groups: tuple[int, ...]
    window: int
    max_positions: int
    max_frames: int

    def __post_init__(self) -> None:
        check_whole(self, "config.vision")
        stages = [self.widths, self.depths, self.heads, self.groups]
        if {len(stage) for stage in stages} != {4} or not all(
            isinstance(value, int) and value > 0 for stage in stages for value in stage
        ):
            raise ValueError(
                f"config.vision: widths {self.widths}, depths {self.depths}, heads {self.heads} and groups "
                f"{self.groups} must be four whole numbers each."
            )
        for name, parts in (("heads", self.heads), ("groups", self.groups)):
            if any(width % count for width, count in zip(self.widths, parts)):
                raise ValueError(f"config.vision: {name} {parts} must divide the widths {self.widths}.")


@dataclass(frozen=True)
class BartConfig:
    """A BART encoder. max_positions: without the two that BART leaves unused."""

    width: int
    depth: int
    mlp: int
    heads: int
    vocab: int
    max_positions: int

    def __post_init__(self) -> None:
        check_whole(self, "config.text")
        if self.width % self.heads:
            raise ValueError(f"config.text: {self.heads} heads do not divide the width {self.width}.")


@dataclass(frozen=True)
class XVLAConfig(Sizes):
    """A whole X-VLA network.

    image_size: side of a view. width, depth, mlp, heads: of the transformer. domains: rows of what each kind
        of robot has for itself. prompts: soft prompts of a domain. time_dim: of the time embedding.
    max_positions: of the transformer's sequence, without the soft prompts.
    domain_projections: whether each domain projects the prefix by itself.
    action_dim, state_dim: of the network. horizon: actions in a chunk. max_prompt: tokens of every prompt,
        which is filled up with padding. views: image inputs; those without a camera are rows of zeros.
    action_mode: which channels are grippers, see policy.
    """

    vision: DaViTConfig
    text: BartConfig
    image_size: int
    width: int
    depth: int
    mlp: int
    heads: int
    domains: int
    prompts: int
    time_dim: int
    max_positions: int
    domain_projections: bool
    action_dim: int
    state_dim: int
    horizon: int
    max_prompt: int
    views: int
    image_names: tuple[str, ...]
    action_mode: str
    kind: str = "xvla"

    def __post_init__(self) -> None:
        if self.kind != "xvla":
            raise ValueError(f"kind is '{self.kind}'; these are the sizes of 'xvla'.")
        check_whole(self, "config", or_zero=("prompts",))
        check_image_names(self.image_names)
        if len(self.image_names) > self.views:
            raise ValueError(f"image_names {self.image_names} are more than the {self.views} views.")
        if self.width % self.heads or self.time_dim % 2:
            raise ValueError(
                f"config: {self.heads} heads must divide the width {self.width}, and time_dim "
                f"{self.time_dim} must be even."
            )
        if self.prefix_rows + self.horizon > self.max_positions:
            raise ValueError(
                f"config: {self.horizon} actions and a prefix of {self.prefix_rows} are more than the "
                f"{self.max_positions} positions."
            )

    @cached_property
    def chain(self) -> Chain:
        """The family's micro-requests. A step computes over the prefix again: its rows attend to the
        actions."""
        seen = Leaf("seen", (len(self.image_names) * self.image_tokens, self.text.width))
        rows = Leaf("rows", (1, self.prefix_rows + self.prompts, self.width))
        steps = ("x", "t", "dt", "noise", "state", "rows", "domain")
        return Chain(
            (
                MicroRequest("encode", ("pixels",), (seen,)),
                MicroRequest("prefill", ("seen", "words", "domain"), (rows,)),
                MicroRequest("denoise", steps, (Leaf("actions"),), kept="step"),
            ),
            inputs=(Leaf("domain", (1,), "int64"),),
            capturable=True,
        )

    @property
    def image_tokens(self) -> int:
        """Tokens of a view: one for the mean, and one for each place of the last stage."""
        side = self.image_size
        for kernel, stride, padding in CONVOLUTIONS:
            side = (side + 2 * padding - kernel) // stride + 1
        return 1 + side * side

    @property
    def prefix_rows(self) -> int:
        """Rows of the prefix in the transformer's sequence, without the soft prompts."""
        return self.views * self.image_tokens + self.max_prompt


CONVOLUTIONS = ((7, 4, 3), (3, 2, 1), (3, 2, 1), (3, 2, 1))
"""Kernel, stride and padding of the convolution before each stage of the DaViT."""

XVLA = XVLAConfig(
    vision=DaViTConfig((256, 512, 1024, 2048), (1, 1, 9, 1), (8, 16, 32, 64), (8, 16, 32, 64), 12, 50, 100),
    text=BartConfig(1024, 12, 4096, 16, 51289, 4096),
    image_size=224,
    width=1024,
    depth=24,
    mlp=4096,
    heads=16,
    domains=30,
    prompts=32,
    time_dim=32,
    max_positions=512,
    domain_projections=False,
    action_dim=20,
    state_dim=20,
    horizon=30,
    max_prompt=64,
    views=3,
    image_names=("image", "image2", "image3"),
    action_mode="ee6d",
)
"""The published model of 0.9 G, with the horizon of its authors' server."""
