"""Sizes of tiny models, to try GPU code on a CPU."""

from __future__ import annotations

from vla_accel_ros.models.config import GemmaConfig, LlamaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.smolvla.config import NORM_EPS, SmolVLAConfig
from vla_accel_ros.planning.work import Sizes

VISION = VisionConfig(width=24, depth=2, mlp=48, heads=4, image_size=28, patch=14)
TINY_OPENVLA = OpenVLAConfig(
    VISION,
    VISION,
    4,
    LlamaConfig(width=32, depth=3, mlp=48, heads=4, kv_heads=2, head_dim=8),
    64,
    56,
    16,
    None,
    32,
)
TINY_SMOLVLA = SmolVLAConfig(
    VisionConfig(width=24, depth=2, mlp=48, heads=4, image_size=56, patch=14),
    2,
    LlamaConfig(width=32, depth=2, mlp=64, heads=4, kv_heads=2, head_dim=8, norm_eps=NORM_EPS),
    LlamaConfig(width=24, depth=2, mlp=48, heads=4, kv_heads=2, head_dim=8, norm_eps=NORM_EPS),
    2, 300, 8, 8, 8, 32, ("base", "left", "right"),
)  # fmt: skip


def tiny_pi(kind: str, cameras: tuple[str, ...] = ("left", "right")) -> PiConfig:
    """Return the sizes of a tiny pi0 or pi0.5."""
    prefix = GemmaConfig(width=32, depth=2, mlp=64, heads=4, kv_heads=1, head_dim=8)
    expert = GemmaConfig(width=24, depth=2, mlp=48, heads=4, kv_heads=1, head_dim=8)
    return PiConfig(kind, VISION, prefix, expert, 300, 8, 8, 8, 32, cameras)


def tiny_models() -> dict[str, Sizes]:
    """Return one of each family, by the names of planning.sizes.MODELS."""
    three = ("base", "left", "right")
    return {
        "pi0": tiny_pi("pi0", three),
        "pi05": tiny_pi("pi05", three),
        "openvla": TINY_OPENVLA,
        "smolvla": TINY_SMOLVLA,
    }
