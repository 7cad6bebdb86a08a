"""The families' plain modules on the meta device, and the bytes of their parts."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import torch

from vla_accel_ros.models.checkpoints.streaming import empty
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.fastwam.config import FastWAMConfig
from vla_accel_ros.models.fastwam.model import FastWAM
from vla_accel_ros.models.groot.config import GrootConfig
from vla_accel_ros.models.groot.model import Groot
from vla_accel_ros.models.mimic_video.config import MimicVideoConfig
from vla_accel_ros.models.mimic_video.model import MimicVideo
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.openvla_oft.config import OpenVLAOFTConfig
from vla_accel_ros.models.openvla_oft.model import OpenVLAOFT
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi_fast.config import PiFastConfig
from vla_accel_ros.models.pi_fast.model import PiFast
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.models.smolvla.model import SmolVLA
from vla_accel_ros.models.xvla.config import XVLAConfig
from vla_accel_ros.models.xvla.model import XVLA
from vla_accel_ros.planning.work import PlainSizes, Sizes

NETWORKS: dict[type, Any] = {
    PiConfig: Pi,
    PiFastConfig: PiFast,
    SmolVLAConfig: SmolVLA,
    OpenVLAConfig: OpenVLA,
    OpenVLAOFTConfig: OpenVLAOFT,
    GrootConfig: Groot,
    XVLAConfig: XVLA,
    FastWAMConfig: FastWAM,
    MimicVideoConfig: MimicVideo,
}


@lru_cache(4)
def network(sizes: Sizes) -> Any:
    """Return the family's plain modules on the meta device, as loaded in bfloat16."""
    model = empty(NETWORKS[type(sizes)], sizes, torch.bfloat16)
    if isinstance(model, FastWAM):
        with torch.device("meta"):
            model.requires_grad_(False).fold()
    return model


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
