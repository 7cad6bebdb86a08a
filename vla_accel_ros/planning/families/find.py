"""Find the family of a model's sizes."""

from __future__ import annotations

from typing import Any

from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.planning.families import openvla, pi, smolvla
from vla_accel_ros.planning.families.work import Stages, Work

Sizes = PiConfig | OpenVLAConfig | SmolVLAConfig
FAMILIES: dict[type, Any] = {PiConfig: pi, OpenVLAConfig: openvla, SmolVLAConfig: smolvla}


def operations(sizes: Sizes, work: Work) -> Stages:
    """Return the operations of every stage. Raises ValueError if the family is unknown."""
    found: Stages = _family(sizes).stages(sizes, work)
    return found


def check_work(sizes: Sizes, work: Work) -> None:
    """Raise ValueError for a load that the model cannot have in this engine: more cameras or words than it
    takes, or a precision that its family lacks."""
    kind = sizes.kind
    if work.prompt > sizes.max_prompt:
        raise ValueError(f"prompt is {work.prompt}; this {kind} takes 1 to {sizes.max_prompt} tokens.")
    if not isinstance(sizes, OpenVLAConfig) and work.views > len(sizes.image_names):
        raise ValueError(f"views is {work.views}; this {kind} has {len(sizes.image_names)} cameras.")
    if work.precision in _family(sizes).LACKING:
        raise ValueError(f"precision is {work.precision}, but {kind} has no stages in it; use exact.")


def weight_bytes(sizes: Sizes) -> int:
    """Return the bytes of the parameters as loaded in bfloat16. Raises ValueError as operations."""
    return sum(weight_parts(sizes).values())


def weight_parts(sizes: Sizes) -> dict[str, int]:
    """Return the same bytes by part of the model. Raises ValueError as operations."""
    family = _family(sizes)
    if not hasattr(family, "weight_parts"):
        return {"all": int(family.weight_bytes(sizes))}
    found: dict[str, int] = family.weight_parts(sizes)
    return found


def _family(sizes: Sizes) -> Any:
    if type(sizes) not in FAMILIES:
        raise ValueError(
            f"there is no description of the stages of a {getattr(sizes, 'kind', type(sizes).__name__)}."
        )
    return FAMILIES[type(sizes)]
