"""What of a checkpoint is prepared for the engine, and where a converted one comes from, in words."""

from __future__ import annotations

from typing import Any

from vla_accel_ros.models.checkpoints.conversion import FIELD, provenance_of
from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.pi.stored_fold import FOLDED, StoredFold
from vla_accel_ros.models.smolvla.config import SmolVLAConfig

MB = 1e6


def prepared(told: Description) -> list[tuple[str, str]]:
    """(name, text): what is fused and folded and, of a converted folder, its origin."""
    said = provenance_of(told.folder)
    lines = [("fused", _fused(told)), ("folded", _folded(told, said))]
    if said:
        lines.append(("converted", _origin(said)))
    return lines


def _fused(told: Description) -> str:
    if isinstance(told.config, SmolVLAConfig):
        return "nothing: no stage of the engine reads parameters of a SmolVLA as one"
    parts = [(stored.part, stored.bytes) for stored in told.tensors.values() if stored.part is not None]
    if not parts:
        return "nothing: every parameter is a tensor; they are joined while loading"
    wholes = len({part.tensor for part, _ in parts})
    size = sum(count for _, count in parts)
    return f"{len(parts)} parameters as {wholes} tensors, {size / MB:,.1f} of {told.bytes / MB:,.1f} MB"


def _folded(told: Description, said: dict[str, Any]) -> str:
    if not isinstance(told.config, PiConfig):
        return "nothing: of this network nothing can be computed ahead"
    if any(FOLDED in sentence for sentence in told.missing):
        return f"{FOLDED} cannot be used, see below"
    fold = StoredFold.find(told.folder, told.config)
    if fold is None:
        gone = f"{FOLDED} is not there: " if FIELD in said else "nothing: "
        return gone + "constants are computed while fast stages are made"
    steps, rule, dtype = fold.key
    return (
        f"{fold.bytes / MB:.2f} MB of constants for {steps} steps ({rule}'s times) of weights in {dtype}; "
        "for other settings they are computed while fast stages are made"
    )


def _origin(said: dict[str, Any]) -> str:
    text = f"from {said.get('source')} ({said.get('format')}), {said.get('date')}, by {said.get('version')}"
    return f"{text}, SHA-256 {said.get('sha256')}"
