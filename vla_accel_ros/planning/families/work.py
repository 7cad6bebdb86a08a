"""What is asked of a model's stages: how many images, words, steps, chunks; and in which dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vla_accel_ros.planning.operations import Op

STAGES = ("encode", "prefill", "denoise", "decode")
Stages = Mapping[str, tuple[Op, ...]]
"""The operations of each of STAGES; empty where a family does not have it. decode: of one token."""

BUCKET = 16
"""Prompts are padded to a multiple of this in captured stages of pi0 and pi0.5."""


@dataclass(frozen=True)
class Dtypes:
    """In which dtype the weights of a stage's products are, and in which they are multiplied."""

    weights: str = "bf16"
    compute: str = "bf16"


EXACT = Dtypes()
PRECISIONS: dict[str, dict[str, Dtypes]] = {
    "exact": {},
    "fp8": {name: Dtypes("fp8", "fp8") for name in ("encode", "prefill")} | {"denoise": Dtypes("fp8")},
    "int8": {"denoise": Dtypes("int8"), "decode": Dtypes("int8")},
    "int4": {"denoise": Dtypes("int4"), "decode": Dtypes("int4")},
    "w8a8": {name: Dtypes("int8", "int8") for name in STAGES},
    "w8a8-int4": {
        **{name: Dtypes("int8", "int8") for name in ("encode", "prefill")},
        **{name: Dtypes("int4") for name in ("denoise", "decode")},
    },
    "w8a8-fp8": {name: Dtypes("fp8", "fp8") for name in STAGES},
    "all-int8": {name: Dtypes("int8", "int8") for name in STAGES},
    "all-fp8": {name: Dtypes("fp8", "fp8") for name in STAGES},
    "all-fp4": {name: Dtypes("fp4", "fp4") for name in STAGES},
}
"""By the engine's name of it (engine.stages.precision). Those that begin with all- no engine here has:
weights and activations of every stage, as other engines have them, for comparison."""

ENGINE_PRECISIONS = ("exact", "fp8", "int8", "int4", "w8a8", "w8a8-int4", "w8a8-fp8")
ROWS = {"w8a8": "int8", "w8a8-int4": "int8", "w8a8-fp8": "fp8"}
"""Of the engine's precisions whose encode and prefill have rows in 8 bits: the dtype."""
ROWS_EVERYWHERE = ("w8a8", "w8a8-fp8")


@dataclass(frozen=True)
class Work:
    """views: images of a frame; prompt: tokens of words; steps: of the flow; chunk: actions, None = the
    model's; batch: robots whose frames and chunks are computed together; answer: tokens that are decoded.

    eight_bit_denoise: denoising of w8a8 and w8a8-fp8 is in 8 bits where memory is fast, too. fast_memory: the
    device feeds few rows faster than its processors widen weights, where fp8 is for prefill alone, and
    denoising of w8a8 and w8a8-fp8 is exact unless asked for. Raises ValueError for what no stage computes.
    """

    views: int = 2
    prompt: int = 20
    steps: int = 10
    chunk: int | None = None
    batch: int = 1
    precision: str = "exact"
    eight_bit_denoise: bool = False
    fast_memory: bool = False

    def __post_init__(self) -> None:
        for name in ("views", "prompt", "steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give 1 or more.")
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk is {self.chunk}; give 1 or more actions.")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is {self.precision!r}; use one of {', '.join(PRECISIONS)}.")
        if self.eight_bit_denoise and not self.rows_everywhere:
            raise ValueError(
                f"eight_bit_denoise is of {' and '.join(ROWS_EVERYWHERE)}, but precision is {self.precision}."
            )

    def dtypes(self, stage: str) -> Dtypes:
        """Of the products of a stage that may have fewer bits."""
        if self.precision == "fp8" and self.fast_memory and stage != "prefill":
            return EXACT
        if self.rows_everywhere and self.fast_memory and stage == "denoise" and not self.eight_bit_denoise:
            return EXACT
        return PRECISIONS[self.precision].get(stage, EXACT)

    @property
    def rows_in(self) -> str | None:
        """In which dtype encode and prefill have rows in 8 bits, as the engine has them; None = in none."""
        return ROWS.get(self.precision)

    @property
    def rows_everywhere(self) -> bool:
        """Whether denoising and text have them, too, as far as the device pays."""
        return self.precision in ROWS_EVERYWHERE

    @property
    def bucket(self) -> int:
        """Prompt tokens that are computed."""
        return -(-self.prompt // BUCKET) * BUCKET
