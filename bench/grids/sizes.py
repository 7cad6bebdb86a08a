"""Which models and cells a run of bench/pipeline.py has: all, those with targets, or small ones to try."""

from __future__ import annotations

from dataclasses import dataclass, replace

from grids import actionflow, mps, oxygen
from grids.arrivals import ARRIVALS
from vla_accel_ros.models.config import PI0, PI05, GemmaConfig, LlamaConfig, PiConfig, VisionConfig
from vla_accel_ros.models.openvla.config import OPENVLA_7B, OpenVLAConfig
from vla_accel_ros.models.smolvla.config import NORM_EPS, SmolVLAConfig

KINDS = {"pi0": PI0, "pi05": PI05}
OXYGEN_HORIZON = 10
"""Actions in a chunk, in OxyGen's figures."""


@dataclass(frozen=True)
class Plan:
    """All parts."""

    name: str
    oxygen_model: PiConfig
    oxygen: oxygen.Grid
    mps: mps.Grid
    actionflow_model: OpenVLAConfig
    actionflow: actionflow.Grid
    staggered_model: PiConfig
    staggered_steps: tuple[int, ...]
    chunks: int


def full() -> Plan:
    """The grids of the papers: about ten minutes of an H200."""
    return Plan(
        "full",
        replace(PI05, horizon=OXYGEN_HORIZON),
        oxygen.Grid((10, 5, 20), (30, 10, 20, 5), (1, 3, 5, 10, 30), ARRIVALS, frames=60, plain_frames=3),
        mps.Grid(10, (30, 20, 10, 5), frames=16, seconds=2.0),
        OPENVLA_7B,
        actionflow.Grid((7, 32, 16, 24), (276, 400, 300, 350), frames=60, peer_frames=3),
        PI05,
        (5, 10),
        400,
    )


def quick() -> Plan:
    """The rows that have targets."""
    whole = full()
    return replace(
        whole,
        name="quick",
        oxygen=oxygen.Grid((10,), (30,), (1, 3, 5, 30), ("uniform",), frames=60, plain_frames=3),
        mps=mps.Grid(10, (30,), frames=16, seconds=2.0),
        actionflow=actionflow.Grid((7, 32), (276,), frames=60, peer_frames=3),
        chunks=200,
    )


def small() -> Plan:
    """Everything once, on a CPU."""
    vision = VisionConfig(width=24, depth=2, mlp=48, heads=4, image_size=28, patch=14)
    prefix = GemmaConfig(width=32, depth=2, mlp=64, heads=4, kv_heads=1, head_dim=8)
    expert = GemmaConfig(width=24, depth=2, mlp=48, heads=4, kv_heads=1, head_dim=8)
    pi05 = PiConfig("pi05", vision, prefix, expert, 300, 8, 8, 8, 32, ("left", "right"))
    llama = LlamaConfig(width=32, depth=3, mlp=48, heads=4, kv_heads=2, head_dim=8)
    openvla = OpenVLAConfig(vision, vision, 4, llama, 64, 56, 16, None, 32)
    return Plan(
        "small",
        pi05,
        oxygen.Grid((2,), (4,), (1, 4), ARRIVALS, frames=6, plain_frames=3, least=6),
        mps.Grid(2, (4,), frames=3, seconds=0.1),
        openvla,
        actionflow.Grid((3,), (17,), frames=6, peer_frames=3),
        pi05,
        (3,),
        6,
    )


def small_smolvla() -> SmolVLAConfig:
    """Of a CPU's size."""
    vision = VisionConfig(width=24, depth=2, mlp=48, heads=4, image_size=56, patch=14)
    prefix = LlamaConfig(width=32, depth=2, mlp=64, heads=4, kv_heads=2, head_dim=8, norm_eps=NORM_EPS)
    expert = LlamaConfig(width=24, depth=2, mlp=48, heads=4, kv_heads=2, head_dim=8, norm_eps=NORM_EPS)
    return SmolVLAConfig(vision, 2, prefix, expert, 2, 300, 8, 8, 8, 32, ("base", "left", "right"))


PLANS = {"full": full, "quick": quick, "small": small}


def plan(name: str) -> Plan:
    """One of PLANS."""
    return PLANS[name]()


def config_of(kind: str, tiny: bool) -> PiConfig:
    """Of KINDS, or a tiny one of that kind with three cameras."""
    names = ("base", "left", "right")
    return replace(small().staggered_model, kind=kind, image_names=names) if tiny else KINDS[kind]
