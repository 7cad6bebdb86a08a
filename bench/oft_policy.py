"""A small OpenVLA-OFT, trained in minutes on the bundled tasks: how long that takes, and its success.

    python bench/oft_policy.py [--parts training success] [--families reach follow] [--processes N]

`training` (training/oft.py) wants a GPU and leaves a checkpoint in the family's own layout in
out/oft_reach_follow/policy, which every command takes as --model. `success` plays it in simulation time on
the CPU, as bench/demo_policy.py does the bundled policy. The weights are not stored here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))

from run import Bench, Given, Row, main, scratch
from training import oft
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.sim.tasks import FAMILIES
from vla_accel_ros.tools.demo_policy.evaluate import Plan, evaluate, summary
from vla_accel_ros.tools.demo_policy.rollout import CONDITIONS


def options(add: Callable[..., Any]) -> None:
    add("--families", nargs="+", choices=FAMILIES, default=["reach", "follow"], help="default: reach follow")
    add("--conditions", nargs="+", choices=CONDITIONS, default=["normal", "shuffled"], help="of success")
    add("--episodes", type=int, default=200, help="of each family and condition (default: %(default)s)")
    add("--processes", type=int, default=1, help="that record and play episodes (default: %(default)s)")


def folder(given: Given) -> Path:
    """Of the run on these families."""
    return scratch(given) / "_".join(("oft", *given.families))


def training(given: Given) -> Row:
    """Its time, recipe and losses."""
    device = torch.device("cuda" if torch.cuda.is_available() and not given.small else "cpu")
    recipe, mask = oft.SECONDS if given.small else oft.MINUTES, Contract.load(demo_contract()).delta_mask
    families = tuple(given.families)
    return {"training": oft.train(folder(given), recipe, families, mask, device, given.processes)}


def success(given: Given) -> Row:
    """In closed loop, with the normal seeds that were lost."""
    plan = Plan(
        folder(given) / "policy",
        demo_contract(),
        given.episodes,
        tuple(given.conditions),
        tuple(given.families),
    )
    episodes = evaluate(plan, given.processes)
    lost = [(e.family, e.seed) for e in episodes if e.condition == "normal" and not e.success]
    return {"success": {"plan": plan.as_dict(), "summary": summary(episodes), "lost": lost}}


BENCH = Bench(
    "oft_policy", parts={"training": training, "success": success}, options=options, small=True,
    smoke="--small --families reach --conditions normal --episodes 1",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(BENCH))
