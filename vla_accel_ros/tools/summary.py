"""Describes a checkpoint in words."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.conversion import provenance_of
from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.models.config import VisionConfig
from vla_accel_ros.models.micro_requests import DECODE, DENOISE, FORWARD
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.planning.work import PlainSizes

GB, MB = 1e9, 1e6
ACTING = {DENOISE: "flow matching", DECODE: "tokens", FORWARD: "one forward"}


def summary(description: Description) -> str:
    """Return several lines: family, sizes, weights, chunk, cameras and notes."""
    config: Any = description.config
    lines = [f"{config.kind} in {description.folder} ({description.format})"]

    def line(name: str, text: str) -> None:
        lines.extend(textwrap.wrap(f"  {name:<14}{text}", 110, subsequent_indent=" " * 16))

    for name, text in _networks(config):
        line(name, text)
    vocab = config.vocab if hasattr(config, "vocab") else config.text.vocab
    line("words", f"{vocab} tokens, prompts of up to {config.max_prompt}")
    film = ", whose words modulate the towers (FiLM)" if getattr(config, "film", False) else ""
    line("actions by", f"{ACTING[config.chain.acts]}{film}")
    numbers = sum(math.prod(stored.shape) for stored in description.tensors.values())
    types = Counter[str]()
    for stored in description.tensors.values():
        types[stored.dtype] += stored.bytes
    parts = ", ".join(f"{size / GB:.2f} GB {dtype}" for dtype, size in types.most_common())
    files = len({stored.file for stored in description.tensors.values()})
    line(
        "weights",
        f"{numbers / 1e6:,.1f} M numbers, {description.bytes / GB:.2f} GB ({parts}) in {files} file(s)",
    )
    for name, text in prepared(description):
        line(name, text)
    line("chunk", f"{description.horizon} action(s) of {_dims(description.actions, description.action_dim)}")
    line(
        "state",
        _dims(description.state, description.state_dim)
        if description.state_dim
        else "none: the network takes no joints",
    )
    cameras = (
        name
        + (f" ({description.camera_sources[name]} in training)" if name in description.camera_sources else "")
        for name in config.image_names
    )
    line("cameras", "any one image" if description.any_camera else ", ".join(cameras))
    if description.joint_names:
        line("joints", ", ".join(description.joint_names))
    line("normalisation", description.normalisation)
    if len(description.statistics) > 1:
        names = ", ".join(description.statistics)
        line("statistics of", f"{names}: choose with --statistics, of the nodes the parameter statistics")
    if description.relative is not None:
        relative = np.flatnonzero(description.relative).tolist()
        line(
            "relative", f"actions {relative} to the joints" if relative else "none: all actions are absolute"
        )
    for note in description.notes:
        line("note", note)
    return "\n".join(lines)


def prepared(description: Description) -> list[tuple[str, str]]:
    """Return (name, text) pairs: what is fused and, for a converted folder, its origin."""
    provenance = provenance_of(description.folder)
    lines = [("fused", _fused(description))]
    if provenance:
        lines.append(("converted", _origin(provenance)))
    return lines


def _fused(description: Description) -> str:
    if isinstance(description.config, SmolVLAConfig | PlainSizes):
        return f"nothing: no stage of the engine reads parameters of a {description.config.kind} as one"
    parts = [
        (stored.part, stored.bytes) for stored in description.tensors.values() if stored.part is not None
    ]
    among = Counter(part.tensor for part, _ in parts)
    parts = [(part, count) for part, count in parts if among[part.tensor] > 1]
    if not parts:
        return "nothing: every parameter is a tensor; they are joined while loading"
    wholes = len({part.tensor for part, _ in parts})
    size = sum(count for _, count in parts)
    return (
        f"{len(parts)} parameters as {wholes} tensors, {size / MB:,.1f} of {description.bytes / MB:,.1f} MB"
    )


def _origin(provenance: dict[str, Any]) -> str:
    source, written, date, version, sha256 = map(
        provenance.get, ("source", "format", "date", "version", "sha256")
    )
    return f"from {source} ({written}), {date}, by {version}, SHA-256 {sha256}"


def _networks(config: Any) -> Iterator[tuple[str, str]]:
    """Describe a family's networks by the names of its sizes; one without a depth is as deep as the whole."""
    for name, part in {**vars(config), "transformer": config}.items():
        if not hasattr(part, "mlp"):
            continue
        if isinstance(part, VisionConfig):
            inside = f", {part.image_size} px in patches of {part.patch} ({part.tokens} tokens)"
        else:
            inside = f", {part.heads} heads of {part.head_dim}" if hasattr(part, "head_dim") else ""
        yield name, f"{part.width} x {getattr(part, 'depth', None) or config.depth} layers{inside}"


def _dims(trained: np.ndarray, limit: int) -> str:
    size = trained.shape[1]
    return f"{size} numbers (of {limit})" if size and size != limit else f"{size or limit} numbers"
