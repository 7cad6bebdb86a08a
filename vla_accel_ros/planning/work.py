"""The load of a model's stages: images, words, steps, chunks; and the dtypes of their products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.fastwam.config import FastWAMConfig
from vla_accel_ros.models.groot.config import GrootConfig
from vla_accel_ros.models.mimic_video.config import MimicVideoConfig
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla_oft.config import OpenVLAOFTConfig
from vla_accel_ros.models.pi_fast.config import PiFastConfig
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.models.xvla.config import XVLAConfig
from vla_accel_ros.planning.operations import Op

PlainSizes = GrootConfig | MimicVideoConfig | XVLAConfig | OpenVLAOFTConfig | FastWAMConfig
"""Of families without stages of kernels."""
Sizes = PiConfig | PiFastConfig | OpenVLAConfig | SmolVLAConfig | PlainSizes
ACTION_TOKENS = 7
"""Tokens of an action of OpenVLA."""

STAGES = ("encode", "prefill", "denoise", "decode", "forward", "text_encode")
Stages = Mapping[str, tuple[Op, ...]]
"""The operations of each of STAGES that a family has. decode: of one token."""

BUCKET = 16
"""Captured stages of pi0 and pi0.5 pad prompts to a multiple of this."""


@dataclass(frozen=True)
class Dtypes:
    """Dtype of the weights of a stage's products, and dtype in which they are multiplied."""

    weights: str = "bf16"
    compute: str = "bf16"


EXACT = Dtypes()
PRECISIONS: dict[str, dict[str, Dtypes]] = {
    "exact": {},
    "fp8": {name: Dtypes("fp8", "fp8") for name in ("encode", "prefill")} | {"denoise": Dtypes("fp8")},
    "nvfp4": {"prefill": Dtypes("fp4", "fp4")},
    "int8": {"denoise": Dtypes("int8"), "decode": Dtypes("int8")},
    "int4": {"denoise": Dtypes("int4"), "decode": Dtypes("int4")},
    "w8a8": {name: Dtypes("int8", "int8") for name in STAGES},
    "w8a8-int4": {
        **{name: Dtypes("int8", "int8") for name in ("encode", "prefill")},
        **{name: Dtypes("int4") for name in ("denoise", "decode")},
    },
    "all-int8": {name: Dtypes("int8", "int8") for name in STAGES},
    "all-fp8": {name: Dtypes("fp8", "fp8") for name in STAGES},
    "all-fp4": {name: Dtypes("fp4", "fp4") for name in STAGES},
}
"""By the engine's name (engine.stages.precision). Those that begin with all- are not in this engine: they
quantise weights and activations of every stage, as other engines do, for comparison."""

ENGINE_PRECISIONS = ("exact", "fp8", "nvfp4", "int8", "int4", "w8a8", "w8a8-int4")
ROWS = {"w8a8": "int8", "w8a8-int4": "int8"}
"""The engine's precisions with 8-bit rows in encode and prefill, and their dtype."""
ROWS_EVERYWHERE = ("w8a8",)


@dataclass(frozen=True)
class Work:
    """views: images of a frame. prompt: text tokens. steps: of the flow. chunk: actions, None = the model's.
    batch: robots whose frames and chunks are computed together.

    fast_memory: the device feeds few rows faster than its SMs dequantise weights; fp8 then applies only to
    prefill, and w8a8 denoises exactly. Raises ValueError if a value is out of range.
    """

    views: int = 2
    prompt: int = 20
    steps: int = 10
    chunk: int | None = None
    batch: int = 1
    precision: str = "exact"
    fast_memory: bool = False

    def __post_init__(self) -> None:
        for name in ("views", "prompt", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give 1 or more.")
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk is {self.chunk}; give 1 or more actions.")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is {self.precision!r}; use one of {', '.join(PRECISIONS)}.")

    def dtypes(self, stage: str) -> Dtypes:
        """Return the dtypes of a stage's products that may be quantised."""
        if self.precision == "fp8" and self.fast_memory and stage != "prefill":
            return EXACT
        if self.rows_everywhere and self.fast_memory and stage == "denoise":
            return EXACT
        return PRECISIONS[self.precision].get(stage, EXACT)

    @property
    def rows_in(self) -> str | None:
        """Dtype of the 8-bit rows in encode and prefill; None if the precision has none."""
        return ROWS.get(self.precision)

    @property
    def rows_everywhere(self) -> bool:
        """Whether denoise and text have 8-bit rows too, where the device benefits."""
        return self.precision in ROWS_EVERYWHERE

    @property
    def bucket(self) -> int:
        """Prompt tokens that are computed, padding included."""
        return -(-self.prompt // BUCKET) * BUCKET


LACKING: Mapping[type, tuple[str, ...]] = {PiConfig: (), OpenVLAConfig: ("fp8", "nvfp4", "w8a8-int4")}
"""The engine's precisions that a family with quantised stages lacks (engine.options); others have one."""


def check_work(sizes: Sizes, work: Work) -> None:
    """Raise ValueError for a load that the model cannot have in this engine: more cameras or words than it
    takes, or a precision that its family lacks."""
    kind = sizes.kind
    if work.prompt > sizes.max_prompt:
        raise ValueError(f"prompt is {work.prompt}; this {kind} takes 1 to {sizes.max_prompt} tokens.")
    if type(sizes) is not OpenVLAConfig and work.views > len(sizes.image_names):
        raise ValueError(f"views is {work.views}; this {kind} has {len(sizes.image_names)} cameras.")
    if work.precision in LACKING.get(type(sizes), ENGINE_PRECISIONS[1:]):
        raise ValueError(f"precision is {work.precision}, but {kind} has no stages in it; use exact.")
