"""Describes a checkpoint in words."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.conversion import FIELD, provenance_of
from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.models.config import GemmaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.pi.stored_fold import FOLDED, StoredFold
from vla_accel_ros.models.smolvla.config import SmolVLAConfig

GB, MB = 1e9, 1e6


def summary(told: Description) -> str:
    """Return several lines: family, sizes, weights, chunk, cameras and notes."""
    config, lines = told.config, [f"{told.config.kind} in {told.folder} ({told.format})"]

    def line(name: str, text: str) -> None:
        lines.extend(textwrap.wrap(f"  {name:<14}{text}", 110, subsequent_indent=" " * 16))

    if isinstance(config, OpenVLAConfig):
        line("vision", f"{_vision(config.dino)} with {config.registers} registers, {_vision(config.siglip)}")
        line("language", _language(config))
        line("actions by", f"tokens, {config.bins - 1} values each")
    elif isinstance(config, (PiConfig, SmolVLAConfig)):
        line("vision", _vision(config.vision))
        line("language", _language(config))
        line("actions by", f"{_stack(config.expert)}, flow matching")
    numbers = sum(math.prod(stored.shape) for stored in told.tensors.values())
    types = Counter[str]()
    for stored in told.tensors.values():
        types[stored.dtype] += stored.bytes
    parts = ", ".join(f"{size / GB:.2f} GB {dtype}" for dtype, size in types.most_common())
    files = len({stored.file for stored in told.tensors.values()})
    line("weights", f"{numbers / 1e6:,.1f} M numbers, {told.bytes / GB:.2f} GB ({parts}) in {files} file(s)")
    for name, text in prepared(told):
        line(name, text)
    line("chunk", f"{told.horizon} action(s) of {_dims(told.actions, told.action_dim)}")
    line(
        "state", _dims(told.state, told.state_dim) if told.state_dim else "none: the network takes no joints"
    )
    cameras = (
        name + (f" ({told.camera_sources[name]} in training)" if name in told.camera_sources else "")
        for name in config.image_names
    )
    line("cameras", "any one image" if told.any_camera else ", ".join(cameras))
    if told.joint_names:
        line("joints", ", ".join(told.joint_names))
    line("normalisation", told.normalisation)
    if len(told.statistics) > 1:
        line("statistics of", f"{', '.join(told.statistics)}: choose with the parameter statistics")
    if told.relative is not None:
        relative = np.flatnonzero(told.relative).tolist()
        line(
            "relative", f"actions {relative} to the joints" if relative else "none: all actions are absolute"
        )
    for note in told.notes:
        line("note", note)
    return "\n".join(lines)


def prepared(told: Description) -> list[tuple[str, str]]:
    """Return (name, text) pairs: what is fused and folded and, for a converted folder, its origin."""
    said = provenance_of(told.folder)
    lines = [("fused", _fused(told)), ("folded", _folded(told, said))]
    if said:
        lines.append(("converted", _origin(said)))
    return lines


def _fused(told: Description) -> str:
    if isinstance(told.config, SmolVLAConfig):
        return "nothing: no stage of the engine reads parameters of a SmolVLA as one"
    parts = [(stored.part, stored.bytes) for stored in told.tensors.values() if stored.part is not None]
    among = Counter(part.tensor for part, _ in parts)
    parts = [(part, count) for part, count in parts if among[part.tensor] > 1]
    if not parts:
        return "nothing: every parameter is a tensor; they are joined while loading"
    wholes = len({part.tensor for part, _ in parts})
    size = sum(count for _, count in parts)
    return f"{len(parts)} parameters as {wholes} tensors, {size / MB:,.1f} of {told.bytes / MB:,.1f} MB"


def _folded(told: Description, said: dict[str, Any]) -> str:
    if not isinstance(told.config, PiConfig):
        return "nothing: this network has nothing to compute ahead"
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


def _language(config: PiConfig | OpenVLAConfig | SmolVLAConfig) -> str:
    return f"{_stack(config.prefix)}, {config.vocab} tokens, prompts of up to {config.max_prompt}"


def _vision(config: VisionConfig) -> str:
    return (
        f"{config.width} x {config.depth} layers, {config.image_size} px in patches of {config.patch} "
        f"({config.tokens} tokens)"
    )


def _stack(config: GemmaConfig) -> str:
    return f"{config.width} x {config.depth} layers, {config.heads} heads of {config.head_dim}"


def _dims(trained: np.ndarray, most: int) -> str:
    known = trained.shape[1]
    return f"{known} numbers (of {most})" if known and known != most else f"{known or most} numbers"
