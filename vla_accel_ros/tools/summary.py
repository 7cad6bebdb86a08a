"""Describes a checkpoint in words."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from typing import Any

import numpy as np

from vla_accel_ros.models.checkpoints.conversion import provenance_of
from vla_accel_ros.models.checkpoints.description import Description
from vla_accel_ros.models.config import GemmaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.fastwam.config import FastWAMConfig
from vla_accel_ros.models.groot.config import GrootConfig
from vla_accel_ros.models.mimic_video.config import MimicVideoConfig
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla_oft.config import OpenVLAOFTConfig
from vla_accel_ros.models.pi_fast.config import PiFastConfig
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.models.xvla.config import XVLAConfig
from vla_accel_ros.planning.work import PlainSizes

GB, MB = 1e9, 1e6


def summary(description: Description) -> str:
    """Return several lines: family, sizes, weights, chunk, cameras and notes."""
    config, lines = (
        description.config,
        [f"{description.config.kind} in {description.folder} ({description.format})"],
    )

    def line(name: str, text: str) -> None:
        lines.extend(textwrap.wrap(f"  {name:<14}{text}", 110, subsequent_indent=" " * 16))

    if isinstance(config, OpenVLAConfig):
        line("vision", f"{_vision(config.dino)} with {config.registers} registers, {_vision(config.siglip)}")
        line("language", _language(config))
        forward = isinstance(config, OpenVLAOFTConfig)
        film = ", whose words modulate the towers (FiLM)" if getattr(config, "film", False) else ""
        line("actions by", f"one forward{film}" if forward else f"tokens, {config.bins - 1} values each")
    elif isinstance(config, (PiConfig, SmolVLAConfig)):
        line("vision", _vision(config.vision))
        line("language", _language(config))
        line("actions by", f"{_stack(config.expert)}, flow matching")
    elif isinstance(config, GrootConfig):
        line("vision", _vision(config.vision))
        line("language", f"{_stack(config.text)}, {config.vocab} tokens")
        line("actions by", f"{config.dit.width} x {config.dit.depth} layers, flow matching")
    elif isinstance(config, MimicVideoConfig):
        s, d = config.settings, config.decoder
        line("vision", f"{s.img_horizon} frames of {s.height} x {s.width} pixels, {s.rows:,} rows of a video")
        line("language", f"T5, {config.text.width} x {config.text.depth}, {config.text.vocab} tokens")
        line("actions by", f"{d.width} x {d.depth} layers on features of the video, flow matching")
    elif isinstance(config, XVLAConfig):
        line("vision", f"DaViT of {config.image_size} pixels, {config.image_tokens} tokens a view")
        line("language", f"BART, {config.text.width} x {config.text.depth}, {config.text.vocab} tokens")
        line("actions by", f"{config.width} x {config.depth} layers over all rows, flow matching")
    elif isinstance(config, FastWAMConfig):
        line(
            "vision",
            f"{config.video.width} x {config.depth} layers, {config.image_tokens} tokens of one picture",
        )
        line("language", f"UMT5, {config.text.width} x {config.text.depth}, {config.text.vocab} tokens")
        line("actions by", f"{config.action.width} x {config.depth} layers, flow matching")
    elif isinstance(config, PiFastConfig):
        line("vision", _vision(config.vision))
        line("language", f"{_stack(config.prefix)}, {config.vocab} tokens")
        line("actions by", f"tokens of FAST, {config.max_action_tokens} at most")
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
        line("statistics of", f"{', '.join(description.statistics)}: choose with the parameter statistics")
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


def _language(config: PiConfig | OpenVLAConfig | SmolVLAConfig) -> str:
    return f"{_stack(config.prefix)}, {config.vocab} tokens, prompts of up to {config.max_prompt}"


def _vision(config: VisionConfig) -> str:
    return (
        f"{config.width} x {config.depth} layers, {config.image_size} px in patches of {config.patch} "
        f"({config.tokens} tokens)"
    )


def _stack(config: GemmaConfig) -> str:
    return f"{config.width} x {config.depth} layers, {config.heads} heads of {config.head_dim}"


def _dims(trained: np.ndarray, limit: int) -> str:
    size = trained.shape[1]
    return f"{size} numbers (of {limit})" if size and size != limit else f"{size or limit} numbers"
