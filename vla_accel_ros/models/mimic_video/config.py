"""Sizes of a mimic-video network, and the settings of its training that no file of a checkpoint holds.

All modules take their shapes from here; field names that the engine reads are those of PiConfig. The JSON
form is stored in `config.json` under the key `vla_accel_ros`. Settings have the authors' names.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from vla_accel_ros.models.config import TRAINED_AS, check_whole, read_fields
from vla_accel_ros.models.micro_requests import CHUNK, INDEX, INSTRUCTION, STEP, Chain, Leaf, MicroRequest
from vla_accel_ros.models.text.t5 import T5Config

KIND, CAMERA = "mimic_video", "workspace_rgb"
PACE, SHRINK = 4, 8
"""Frames that become one after the first, and pixels on a side, in the video encoder."""
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
        for name in ("rope_t", "rope_h", "rope_w"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < 1e3:
                raise ValueError(f"{TRAINED_AS}.{name} is {value!r}; it must be a number above 0.")
        if self.height % (SHRINK * PATCH) or self.width % (SHRINK * PATCH):
            raise ValueError(
                f"{TRAINED_AS}: images of {self.height}x{self.width} are not of whole patches of "
                f"{SHRINK * PATCH} pixels."
            )
        if (self.img_horizon - 1) % PACE or self.observed > self.state_t:
            raise ValueError(
                f"{TRAINED_AS}.img_horizon is {self.img_horizon}; give 1, 5, 9 ... up to "
                f"{1 + PACE * (self.state_t - 1)}."
            )
        if self.stop_after_step >= self.num_sampling_step:
            raise ValueError(
                f"{TRAINED_AS}.stop_after_step is {self.stop_after_step}; give 0 to below the "
                f"{self.num_sampling_step} steps of num_sampling_step."
            )

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
        known = {field.name: float if field.type == "float" else int for field in fields(cls)}
        values = dict[str, Any]()
        for word in text.split():
            name, _, value = word.partition("=")
            pairs = zip(("height", "width"), value.split("x", 1)) if name == "image_size" else ((name, value),)
            for key, number in pairs:
                try:
                    values[key] = known[key](number)
                except (KeyError, ValueError):
                    names = ", ".join(["image_size", *list(known)[2:]])
                    raise ValueError(
                        f"{TRAINED_AS} has {word!r}; give NAME=NUMBER of {names}, such as "
                        "'image_size=480x640 xattn_layer_idx=20'."
                    ) from None
        return cls(**values)


@dataclass(frozen=True)
class VAEConfig:
    """The encoder of Wan2.1's form. widths: of the first convolution and of each stage. blocks: in a stage.
    in_time: whether each step between stages halves the number of frames, too."""

    widths: tuple[int, ...]
    blocks: int
    in_time: tuple[bool, ...]
    channels: int

    def __post_init__(self) -> None:
        check_whole(self, "config.vae")
        shrinks = 2 ** len(self.in_time), 2 ** sum(self.in_time)
        if shrinks != (SHRINK, PACE) or len(self.widths) != len(self.in_time) + 2:
            raise ValueError(
                f"config.vae: stages of widths {self.widths} and steps in time {self.in_time} do not shrink "
                f"a video {SHRINK} times on a side and {PACE} times in time."
            )


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
        if self.width % 4 or self.head_dim % 2:
            raise ValueError(f"config.blocks: width {self.width} and head_dim {self.head_dim} must be even.")


@dataclass(frozen=True)
class MimicVideoConfig:
    """A whole mimic-video network. video: all its blocks in the file; those beyond the one that the decoder
    reads are used by further steps alone. hidden: widths inside the embedders of state and actions."""

    text: T5Config
    vae: VAEConfig
    video: DiTConfig
    decoder: DiTConfig
    hidden: tuple[int, ...]
    action_dim: int
    state_dim: int
    horizon: int
    settings: Settings
    kind: str = KIND

    def __post_init__(self) -> None:
        if self.kind != KIND:
            raise ValueError(f"kind is '{self.kind}'; these are the sizes of '{KIND}'.")
        check_whole(self, "config")
        if self.settings.xattn_layer_idx > self.video.depth:
            raise ValueError(
                f"{TRAINED_AS}.xattn_layer_idx is {self.settings.xattn_layer_idx}; there are "
                f"{self.video.depth} blocks."
            )
        pairs = (
            ("decoder.context", self.decoder.context, "video.width", self.video.width),
            ("video.context", self.video.context, "text.width", self.text.width),
        )
        for name, value, other, width in pairs:
            if value != width:
                raise ValueError(f"config.{name} is {value}, but {other} {width}; copy files of one training.")
        if self.video.head_dim < 12:
            raise ValueError(f"config.video.head_dim is {self.video.head_dim}; positions need 12 at least.")

    @cached_property
    def chain(self) -> Chain:
        """The family's micro-requests. noisy, clean: a video between two of its steps; features: of the video
        network, from which any number of chunks is made; context: keys and values of the decoder."""
        s = self.settings
        text = Leaf("text", (s.text_tokens, self.text.width))
        latents = Leaf("latents", (self.vae.channels, s.observed, *s.latent))
        features = Leaf("features", (s.rows, self.video.width))
        video = Leaf("noisy"), Leaf("clean")
        between = (INDEX, *(leaf.name for leaf in video)) if s.stop_after_step else ()
        return Chain(
            (
                MicroRequest("text_encode", ("words",), (text,), kept=INSTRUCTION),
                MicroRequest("vae_encode", ("pixels",), (latents,)),
                MicroRequest(
                    "video_denoise",
                    ("latents", "text", *between),
                    (features, *video) if between else (features,),
                    times=1 + s.stop_after_step,
                ),
                MicroRequest("prefill", ("features",), (Leaf("context"),), kept=CHUNK),
                MicroRequest("denoise", ("x", "t", "state", "context"), (Leaf("actions"),), kept=STEP),
            )
        )

    @property
    def image_names(self) -> tuple[str, ...]:
        """Names of the observed frames, oldest first; the number is how many frames ago."""
        past = range(self.settings.img_horizon - 1, 0, -1)
        return (*(f"{CAMERA}_{age}" for age in past), CAMERA)

    @property
    def max_prompt(self) -> int:
        """Most tokens of a prompt."""
        return self.settings.text_tokens

    @property
    def blocks(self) -> int:
        """Blocks of the video network that are computed."""
        return self.video.depth if self.settings.stop_after_step else self.settings.xattn_layer_idx

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of numbers, strings and lists."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> MimicVideoConfig:
        """Inverse of to_json. Raises ValueError naming missing or unknown fields."""
        data = read_fields(cls, data, "config")
        parts = {"text": T5Config, "video": DiTConfig, "decoder": DiTConfig, "settings": Settings}
        vae = read_fields(VAEConfig, data["vae"], "config.vae")
        vae = {name: tuple(value) if isinstance(value, list) else value for name, value in vae.items()}
        for name, part in parts.items():
            data[name] = part(**read_fields(part, data[name], f"config.{name}"))
        return cls(**{**data, "vae": VAEConfig(**vae), "hidden": tuple(data["hidden"])})


MIMIC_VIDEO = MimicVideoConfig(
    text=T5Config(1024, 24, 128, 128, 65536, 32128, 32, 128, False, 1, 1e-6),
    vae=VAEConfig((96, 96, 192, 384, 384), 2, (False, True, True), 16),
    video=DiTConfig(2048, 28, 16, 128, 8192, 1024, 256),
    decoder=DiTConfig(1024, 24, 8, 128, 4096, 2048, 128),
    hidden=(47, 220),
    action_dim=10,
    state_dim=10,
    horizon=15,
    settings=Settings(),
)
"""The published networks of Bridge; those of LIBERO have a horizon of 60."""
