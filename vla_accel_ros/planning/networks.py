"""The families' plain modules on the meta device, and the bytes of their parts."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import torch

from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.fastwam.config import FastWAMConfig
from vla_accel_ros.models.fastwam.model import FastWAM
from vla_accel_ros.models.groot.config import GrootConfig
from vla_accel_ros.models.groot.model import Groot
from vla_accel_ros.models.mimic_video.config import MimicVideoConfig
from vla_accel_ros.models.mimic_video.model import MimicVideo
from vla_accel_ros.models.openvla.checkpoint import empty_openvla
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla_oft.checkpoint import empty as empty_openvla_oft
from vla_accel_ros.models.openvla_oft.config import OpenVLAOFTConfig
from vla_accel_ros.models.pi.weights import empty_pi
from vla_accel_ros.models.pi_fast.config import PiFastConfig
from vla_accel_ros.models.pi_fast.model import PiFast
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.models.smolvla.model import SmolVLA
from vla_accel_ros.models.xvla.config import XVLAConfig
from vla_accel_ros.models.xvla.model import XVLA
from vla_accel_ros.planning.work import PlainSizes, Sizes


@lru_cache(4)
def network(sizes: Sizes) -> Any:
    """Return the family's plain modules on the meta device, as loaded in bfloat16."""
    if isinstance(sizes, PiConfig):
        return empty_pi(sizes, torch.bfloat16)
    if isinstance(sizes, OpenVLAOFTConfig):
        return empty_openvla_oft(sizes, torch.bfloat16)
    if isinstance(sizes, OpenVLAConfig):
        return empty_openvla(sizes, torch.bfloat16)
    with torch.device("meta"):
        if isinstance(sizes, PiFastConfig):
            return PiFast(sizes).set_precision(torch.bfloat16)
        if isinstance(sizes, GrootConfig):
            return Groot(sizes).to(torch.bfloat16)
        if isinstance(sizes, MimicVideoConfig):
            return MimicVideo(sizes).to(torch.bfloat16)
        if isinstance(sizes, FastWAMConfig):
            return FastWAM(sizes).to(torch.bfloat16).requires_grad_(False).fold()
        if isinstance(sizes, XVLAConfig):
            return XVLA(sizes).to(torch.bfloat16)
        return SmolVLA(sizes).set_precision(torch.bfloat16)


def weight_parts(sizes: Sizes) -> dict[str, int]:
    """Return the bytes of the parameters as loaded in bfloat16, by part of the model. modulation: the layers
    that compute scale, shift and gate of pi0.5's norms from the flow time."""
    if isinstance(sizes, SmolVLAConfig | PlainSizes):
        return {"all": sum(parameter.nbytes for parameter in network(sizes).parameters())}
    parts: Counter[str] = Counter()
    for name, parameter in network(sizes).named_parameters():
        parts[_part(name, parameter.ndim)] += parameter.nbytes
    return dict(parts)


def _part(name: str, dimensions: int) -> str:
    if "vision" in name or "projector" in name:
        return "encoder"
    if "embed_tokens" in name or "lm_head" in name:
        return "words"
    if ".dense." in name:
        return "modulation"
    if ".layers." in name and dimensions > 1:
        return "expert" if "gemma_expert" in name else "prefix"
    return "norms and ends"
