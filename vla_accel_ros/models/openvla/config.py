"""Sizes of an OpenVLA model: two image towers, a projector, a Llama stack.

All modules take their shapes from here, so the recorded test model of 600 k parameters and the published one
of 7.5 G share one code. Field names that the engine reads (`prefix`, `image_names`, `max_tokens`) are those
of PiConfig. The JSON form is stored in `config.json` under the key `vla_accel_ros`; published folders lack
it, and sizes.py infers it for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from vla_accel_ros.models.config import LlamaConfig, Sizes, VisionConfig, check_whole
from vla_accel_ros.models.micro_requests import Chain, Leaf, MicroRequest

SPACE_TOKEN = 29871
"""Llama's id of a single space, which ended every prompt in OpenVLA's training."""


@dataclass(frozen=True)
class OpenVLAConfig(Sizes):
    """A whole OpenVLA network.

    dino, siglip: the towers as trained; the last block is never run, so depth - 1 blocks are kept.
    registers: register tokens of the DINOv2 tower, beside its class token.
    prefix: the language stack. vocab: rows of its embedding and head.
    action_vocab: ids before padding (32000 of 32064); the last `bins` of them are the actions.
    bins: edges of the action bins, so there are bins - 1 values.
    space_token: the id that must end a prompt, None for a vocabulary without it.
    max_prompt: most tokens in a prompt. image_names: the one camera, as a robot's contract names it.
    """

    dino: VisionConfig
    siglip: VisionConfig
    registers: int
    prefix: LlamaConfig
    vocab: int
    action_vocab: int
    bins: int = 256
    space_token: int | None = SPACE_TOKEN
    max_prompt: int = 128
    image_names: tuple[str, ...] = ("image_primary",)
    kind: str = "openvla"

    KIND: ClassVar[str] = "openvla"
    OR_ZERO: ClassVar[tuple[str, ...]] = ("registers",)

    def __post_init__(self) -> None:
        if self.kind != self.KIND:
            raise ValueError(f"kind is '{self.kind}'; these are the sizes of '{self.KIND}'.")
        check_whole(self, "config", or_zero=self.OR_ZERO)
        for name in ("image_size", "patch"):
            if getattr(self.dino, name) != getattr(self.siglip, name):
                raise ValueError(
                    f"dino.{name} {getattr(self.dino, name)} differs from siglip.{name} "
                    f"{getattr(self.siglip, name)}; the towers' features are joined patch by patch."
                )
        for name, tower in (("dino", self.dino), ("siglip", self.siglip)):
            if tower.depth < 2:
                raise ValueError(
                    f"{name}.depth is {tower.depth}; the last block is unused, so give 2 or more."
                )
        self._check_cameras()
        if not 2 <= self.bins <= self.action_vocab <= self.vocab:
            raise ValueError(
                f"bins {self.bins}, action_vocab {self.action_vocab}, vocab {self.vocab}: the action tokens "
                "are the last ids of action_vocab, so give 2 <= bins <= action_vocab <= vocab."
            )
        space = self.space_token
        if space is not None and (type(space) is not int or not 0 <= space < self.vocab):
            raise ValueError(f"space_token is {space!r}; give an id below vocab {self.vocab}, or null.")

    def _check_cameras(self) -> None:
        if len(self.image_names) != 1:
            raise ValueError(f"image_names is {self.image_names}; give exactly one name.")

    @cached_property
    def chain(self) -> Chain:
        """The family's micro-requests. It answers no questions: its tokens are actions."""
        seen, hidden = (
            Leaf("seen", (self.dino.tokens, self.prefix.width)),
            Leaf("hidden", (self.prefix.width,)),
        )
        return Chain(
            (
                MicroRequest("encode", ("pixels",), (seen,)),
                MicroRequest("prefill", ("seen", "words"), (Leaf("kv"), hidden)),
                MicroRequest("decode", ("kv", "hidden"), (Leaf("actions"),), kept="step"),
            ),
            causal=True,
        )

    @property
    def features(self) -> int:
        """Width of a patch's features, both towers concatenated."""
        return self.dino.width + self.siglip.width

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens in a prefix: the image and the longest prompt."""
        return self.dino.tokens + self.max_prompt


OPENVLA_7B = OpenVLAConfig(
    dino=VisionConfig(width=1024, depth=24, mlp=4096, heads=16, image_size=224, patch=14),
    siglip=VisionConfig(width=1152, depth=27, mlp=4304, heads=16, image_size=224, patch=14),
    registers=4,
    prefix=LlamaConfig(width=4096, depth=32, mlp=11008, heads=32, kv_heads=32, head_dim=128),
    vocab=32064,
    action_vocab=32000,
)
"""The published openvla-7b."""
