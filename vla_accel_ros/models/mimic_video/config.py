"""Sizes of a mimic-video network, and the settings of its training that no file of a checkpoint holds.

All modules take their shapes from here; field names that the engine reads are those of PiConfig. The JSON
form is stored in `config.json` under the key `vla_accel_ros`. Settings have the authors' names.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from vla_accel_ros.models.config import TRAINED_AS, Sizes, check_whole
from vla_accel_ros.models.encoder_sizes import T5Config
from vla_accel_ros.models.micro_requests import CHUNK, INDEX, INSTRUCTION, STEP, Chain, Leaf, MicroRequest

KIND, CAMERA = "mimic_video", "workspace_rgb"
PACE, SHRINK, STAGES, CHANNELS = 4, 8, 4, 16
"""Of the video encoder: frames that become one after the first, pixels on a side that become one, stages, and
channels of its latents."""
PATCH = 2
"""Latents on a side that become one row."""


@dataclass(frozen=True)
class Settings:
    """What the authors' experiments say, with their published values.

    img_horizon: observed frames. state_t: frames of latents, observed and imagined. text_tokens: rows of text
    that the video network reads, those after its end being 0. xattn_layer_idx: blocks of the video network
    whose features the decoder reads. num_sampling_step: steps of the noise schedule. stop_after_step: after
    how many of them the features are taken. rope_*: stretch of the positions in time, rows and columns.
    """

    height: int = 480
    width: int = 640
    img_horizon: int = 5
    state_t: int = 16
    text_tokens: int = 512
    xattn_layer_idx: int = 20
    num_sampling_step: int = 35
    stop_after_step: int = 0
    rope_t: float = 1.0
    rope_h: float = 3.0
    rope_w: float = 3.0

    def __post_init__(self) -> None:
        check_whole(self, TRAINED_AS, or_zero=("stop_after_step",))
        longest, patch = 1 + PACE * (self.state_t - 1), SHRINK * PATCH
        for name, is_possible, rule in (
            ("height", not self.height % patch, f"whole patches of {patch} pixels"),
            ("width", not self.width % patch, f"whole patches of {patch} pixels"),
            ("img_horizon", self.img_horizon in range(1, longest + 1, PACE), f"1, 5, 9 ... up to {longest}"),
            ("stop_after_step", self.stop_after_step < self.num_sampling_step, "below num_sampling_step"),
            *((axis, 0 < getattr(self, axis) < 1e3, "above 0") for axis in ("rope_t", "rope_h", "rope_w")),
        ):
            if not is_possible:
                raise ValueError(f"{TRAINED_AS}: {name} is {getattr(self, name)}; it must be {rule}.")

    @property
    def observed(self) -> int:
        """Frames of latents that are observed."""
        return 1 + (self.img_horizon - 1) // PACE

    @property
    def latent(self) -> tuple[int, int]:
        """Rows and columns of latents."""
        return self.height // SHRINK, self.width // SHRINK

    @property
    def rows(self) -> int:
        """Rows of the video network."""
        height, width = self.latent
        return self.state_t * (height // PATCH) * (width // PATCH)

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Read "NAME=VALUE ...", image_size as HEIGHTxWIDTH. Raises ValueError for anything else."""
        types = {field.name: float if field.type == "float" else int for field in fields(cls)}
        values = dict[str, Any]()
        for word in text.replace("image_size=", "height,width=").split():
            name, _, value = word.partition("=")
            try:
                parts = zip(name.split(","), value.split("x"), strict=True)
                values |= {key: types[key](part) for key, part in parts}
            except (KeyError, ValueError):
                raise ValueError(
                    f"{TRAINED_AS} has {word!r}; give image_size=HEIGHTxWIDTH, or NAME=NUMBER of "
                    f"{', '.join(list(types)[2:])}."
                ) from None
        return cls(**values)


@dataclass(frozen=True)
class DiTConfig:
    """A stack of modulated blocks. context: width of what they read besides. rank: of their modulations."""

    width: int
    depth: int
    heads: int
    head_dim: int
    mlp: int
    context: int
    rank: int

    def __post_init__(self) -> None:
        check_whole(self, "config.blocks")
        if self.width % 2 or self.head_dim not in range(12, 4097, 2):
            raise ValueError(f"config.blocks: {self} must have an even width, and an even head_dim from 12.")


@dataclass(frozen=True)
class MimicVideoConfig(Sizes):
    """A whole mimic-video network. vae: widths of the video encoder's first convolution and of its stages;
    vae_blocks: of each. video: all its blocks in the file; those beyond the one that the decoder reads are
    used by further steps alone. state_hidden, action_hidden: widths inside the embedders of both."""

    text: T5Config
    vae: tuple[int, ...]
    vae_blocks: int
    video: DiTConfig
    decoder: DiTConfig
    state_hidden: tuple[int, ...]
    action_hidden: tuple[int, ...]
    action_dim: int
    state_dim: int
    horizon: int
    settings: Settings
    kind: str = KIND

    def __post_init__(self) -> None:
        if self.kind != KIND:
            raise ValueError(f"kind is '{self.kind}'; these are the sizes of '{KIND}'.")
        check_whole(self, "config")
        layer, depth = self.settings.xattn_layer_idx, self.video.depth
        if layer > depth:
            raise ValueError(f"{TRAINED_AS}: xattn_layer_idx is {layer}, but there are {depth} blocks.")
        read = self.video.context, self.decoder.context
        if read != (self.text.width, self.video.width):
            raise ValueError(
                f"config: video and decoder read rows of widths {read}, but text and video make such of "
                f"{self.text.width} and {self.video.width}; copy files of one training."
            )

    @cached_property
    def chain(self) -> Chain:
        """The family's micro-requests. noisy, clean: a video between two of its steps; features: of the video
        network, from which any number of chunks is made; context: keys and values of the decoder."""
        s = self.settings
        text = Leaf("text", (s.text_tokens, self.text.width))
        latents = Leaf("latents", (CHANNELS, s.observed, *s.latent))
        features = Leaf("features", (s.rows, self.video.width))
        between = ("noisy", "clean") if s.stop_after_step else ()
        reads = ("latents", "text", *between, *([INDEX] if between else []))
        return Chain(
            (
                MicroRequest("text_encode", ("words",), (text,), kept=INSTRUCTION),
                MicroRequest("vae_encode", ("pixels",), (latents,)),
                MicroRequest(
                    "video_denoise", reads, (features, *map(Leaf, between)), times=1 + s.stop_after_step
                ),
                MicroRequest("prefill", ("features",), (Leaf("context"),), kept=CHUNK),
                MicroRequest("denoise", ("x", "t", "state", "context"), (Leaf("actions"),), kept=STEP),
            ),
            capturable=True,
        )

    @property
    def image_names(self) -> tuple[str, ...]:
        """Names of the observed frames, oldest first; the number is how many frames ago."""
        past = range(self.settings.img_horizon - 1, 0, -1)
        return (*(f"{CAMERA}_{age}" for age in past), CAMERA)

    @property
    def history(self) -> dict[str, dict[str, float]]:
        """Camera's image -> its earlier frames, with their ages [s] in the published trainings, at 5 Hz."""
        return {CAMERA: {f"{CAMERA}_{age}": age / 5.0 for age in range(1, self.settings.img_horizon)}}

    @property
    def max_prompt(self) -> int:
        """Most tokens of a prompt."""
        return self.settings.text_tokens

    @property
    def blocks(self) -> int:
        """Blocks of the video network that are computed."""
        return self.video.depth if self.settings.stop_after_step else self.settings.xattn_layer_idx


MIMIC_VIDEO = MimicVideoConfig(
    T5Config(1024, 24, 128, 128, 65536, 32128, 32, 128, False, 1, 1e-6),
    (96, 96, 192, 384, 384),
    2,
    DiTConfig(2048, 28, 16, 128, 8192, 1024, 256),
    DiTConfig(1024, 24, 8, 128, 4096, 2048, 128),
    *((47, 220), (47, 220), 10, 10, 15),
    Settings(),
)
"""The published networks of Bridge; those of LIBERO have a horizon of 60."""
