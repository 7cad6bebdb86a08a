"""Sizes of a Fast-WAM: a UMT5 encoder, the encoder of Wan's VAE, a video and an action transformer.

All modules take their shapes from here. Field names that the engine reads are those of PiConfig. The JSON
form is stored in `config.json` under the key `vla_accel_ros`; other folders lack it, and sizes.py reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from vla_accel_ros.models.config import Sizes, check_image_names, check_whole
from vla_accel_ros.models.encoder_sizes import T5Config, VAEConfig
from vla_accel_ros.models.micro_requests import Chain, Leaf, MicroRequest

PROMPT = "A video recorded from a robot's point of view executing the following instruction: {task}"
LEROBOT, LIBERO, ROBOTWIN = "lerobot", "libero", "robotwin"
PICTURES = {LEROBOT: 0, LIBERO: 0, ROBOTWIN: 3}
"""Whose way of making one picture of all cameras, see policy; how many cameras it needs, 0 = any."""


@dataclass(frozen=True)
class ExpertConfig:
    """One of the two transformers; they have the same depth and heads. time_dim: of the time embedding."""

    width: int
    mlp: int
    time_dim: int
    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_whole(self, "config.expert")
        if self.time_dim % 2:
            raise ValueError(f"config.expert.time_dim {self.time_dim} must be even.")


@dataclass(frozen=True)
class FastWAMConfig(Sizes):
    """A whole Fast-WAM network.

    depth, heads, head_dim: of both transformers. patch: side of a square of latents that is a token.
    image_height, image_width: of the picture of all cameras. picture: one of PICTURES.
    state_dim: 0 for a network without joints. horizon: actions in a chunk. max_prompt: tokens of a prompt;
    so many rows are always attended to. template: of the prompt. shift: of the flow's times, see
    flow.sampling.SHIFTED. time_scale: what the time 1 is in the time embedding.
    """

    text: T5Config
    vae: VAEConfig
    video: ExpertConfig
    action: ExpertConfig
    depth: int
    heads: int
    head_dim: int
    patch: int
    image_height: int
    image_width: int
    action_dim: int
    state_dim: int
    horizon: int
    max_prompt: int
    image_names: tuple[str, ...]
    picture: str = LEROBOT
    template: str = PROMPT
    shift: float = 5.0
    time_scale: float = 1000.0
    kind: str = "fastwam"

    def __post_init__(self) -> None:
        if self.kind != "fastwam":
            raise ValueError(f"kind is '{self.kind}'; these are the sizes of 'fastwam'.")
        check_whole(self, "config", or_zero=("state_dim",))
        check_image_names(self.image_names)
        step = self.vae.stride * self.patch
        if self.image_height % step or self.image_width % step:
            raise ValueError(
                f"config: a picture of {self.image_height} x {self.image_width} pixels is not a multiple of "
                f"{step}, as the VAE and patches need."
            )
        if self.depth < 2 or self.head_dim % 2:
            raise ValueError(f"config: depth {self.depth} must be 2 or more, head_dim {self.head_dim} even.")
        if PICTURES.get(self.picture, -1) not in (0, len(self.image_names)):
            raise ValueError(
                f"config.picture is {self.picture!r} for {len(self.image_names)} cameras; use one of "
                f"{list(PICTURES)}, {ROBOTWIN} for {PICTURES[ROBOTWIN]}."
            )
        if not isinstance(self.template, str) or self.template.count("{task}") != 1:
            raise ValueError(f"config.template is {self.template!r}; it must have {{task}} once.")
        for name in ("shift", "time_scale"):
            value = getattr(self, name)
            if not isinstance(value, float) or not 0 < value < 1e6:
                raise ValueError(f"config.{name} is {value!r}; it must be above 0.")

    @cached_property
    def chain(self) -> Chain:
        """The family's micro-requests. What words and frames leave are keys and values of every layer, first
        all keys; the video's last layer attends to no words, because nothing reads what it leaves."""

        def kept(name: str, layers: int, rows: int) -> Leaf:
            return Leaf(name, (2, layers, rows, self.heads * self.head_dim))

        depth, words = self.depth, self.max_prompt
        texts = kept("video_text", depth - 1, words), kept("action_text", depth, words)
        frame = kept("video", depth, self.image_tokens), kept("joints", depth, min(self.state_dim, 1))
        latents = Leaf("latents", (self.vae.channels, *self.latent_size))
        read = ("latents", "video_text", "state")[: 3 if self.state_dim else 2]
        steps = ("x", "t", "action_text", "video", "joints")
        return Chain(
            (
                MicroRequest("text_encode", ("words",), texts, kept="instruction"),
                MicroRequest("vae_encode", ("pixels",), (latents,)),
                MicroRequest("prefill", read, frame),
                MicroRequest("denoise", steps, (Leaf("actions"),), kept="step"),
            ),
            capturable=True,
            least_images=len(self.image_names),
        )

    @property
    def latent_size(self) -> tuple[int, int]:
        """Rows and columns of the latents."""
        return self.image_height // self.vae.stride, self.image_width // self.vae.stride

    @property
    def image_tokens(self) -> int:
        """Tokens of a frame."""
        return prod(side // self.patch for side in self.latent_size)


FASTWAM = FastWAMConfig(
    text=T5Config(4096, 24, 64, 64, 10240, 256384, 32, 128, True, 24, 1e-6),
    vae=VAEConfig(160, (1, 2, 4, 4), 2, (False, True, True), 2, (0.0,) * 48, (1.0,) * 48),
    video=ExpertConfig(3072, 14336, 256),
    action=ExpertConfig(1024, 4096, 256),
    depth=30,
    heads=24,
    head_dim=128,
    patch=2,
    image_height=224,
    image_width=448,
    action_dim=7,
    state_dim=8,
    horizon=32,
    max_prompt=128,
    image_names=("image", "wrist_image"),
)
"""The published model of LIBERO. The statistics of its latents are in its VAE's config.json."""
