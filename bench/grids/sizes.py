"""The models and cells of a run of bench/pipeline.py: all, those with targets, or small ones to try."""

from __future__ import annotations

from dataclasses import dataclass, replace

from grids import actionflow, oxygen
from grids.oxygen import ARRIVALS
from vla_accel_ros.models.config import PI05, PiConfig
from vla_accel_ros.models.openvla.config import OPENVLA_7B, OpenVLAConfig
from vla_accel_ros.tools.bench.tiny import TINY_OPENVLA, tiny_pi

OXYGEN_HORIZON = 10
"""Actions in a chunk, in OxyGen's figures."""


@dataclass(frozen=True)
class Plan:
    """All parts."""

    name: str
    oxygen_model: PiConfig
    oxygen: oxygen.Grid
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
        actionflow=actionflow.Grid((7, 32), (276,), frames=60, peer_frames=3),
        chunks=200,
    )


def small() -> Plan:
    """Everything once, on a CPU."""
    pi05 = tiny_pi("pi05")
    return Plan(
        "small",
        pi05,
        oxygen.Grid((2,), (4,), (1, 4), ARRIVALS, frames=6, plain_frames=3, least=6),
        TINY_OPENVLA,
        actionflow.Grid((3,), (17,), frames=6, peer_frames=3),
        pi05,
        (3,),
        6,
    )


PLANS = {"full": full, "quick": quick, "small": small}


def plan(name: str) -> Plan:
    """One of PLANS."""
    return PLANS[name]()
