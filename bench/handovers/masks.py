"""How much of an outdated plan a mask keeps: why a long soft mask reacts slowly.

The arm has moved for 5 frames when the target jumps; the chunk of that moment is the old plan. 8 frames later
a new image is taken, and from the same noise one chunk is sampled freely and one with guidance by each mask.
What the mask keeps of action i is how far the guided action is from the free one towards the old one: 1
sticks to the old plan, 0 replans. `predicted` follows from the weights alone (models.flow.rtc.kept); the rest
is the network, which keeps neighbouring actions alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.engine.actors.guidance import guidance_to
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.flow.rtc import MAX_WEIGHT, kept, prefix_weights
from vla_accel_ros.sim.controller import ArmControllers
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import tasks
from vla_accel_ros.tools.demo_policy.events import MovedTarget
from vla_accel_ros.tools.demo_policy.rollout import FRAME_S, Session

UNDER_WAY, PASSED, DELAY = 5, 8, 9  # frames: until the jump, until the new image; steps of the new chunk
GROUPS = ((0, 8), (9, 11), (12, 14), (15, 17), (18, 20), (21, 23))  # actions first and last


@dataclass(frozen=True)
class Mask:
    """schedule, execution: see models.flow.rtc. max_weight: None is the number of steps."""

    schedule: str
    execution: int
    max_weight: float | None = None


MASKS: dict[str, Mask] = {
    "delay only": Mask("ZEROS", DELAY),
    "exponential, 8 steps": Mask("EXP", DELAY + 8),
    "exponential, whole overlap": Mask("EXP", 32),
    "linear, whole overlap": Mask("LINEAR", 32),
    "hard, whole overlap": Mask("ONES", 32),
    "exponential, whole overlap, strength 10": Mask("EXP", 32, MAX_WEIGHT),
}


def table(engine: Engine, robot: SimRobot, contract: Contract, seeds: int = 20) -> list[dict[str, Any]]:
    """One row a mask: kept and predicted, a mean over scenes for each group of actions."""
    names, known = list(MASKS), engine.policy.config.horizon - PASSED
    gone, way = np.zeros((len(names), known)), np.zeros(known)
    for seed in range(seeds):
        free, old, guided = _replan(Session(engine, robot, contract), seed)
        difference = old - free
        gone += ((guided - free) * difference).sum(axis=-1)
        way += np.square(difference).sum(axis=-1)
    rows = []
    for name, share in zip(names, gone):
        mask = MASKS[name]
        weights = prefix_weights(
            mask.schedule, DELAY, min(mask.execution, known), engine.policy.config.horizon
        )
        predicted = np.array([kept(float(w), engine.config.steps, mask.max_weight) for w in weights])
        rows.append(
            {
                "mask": name,
                "kept": [float(share[a : b + 1].sum() / way[a : b + 1].sum()) for a, b in GROUPS],
                "predicted": [float(predicted[a : b + 1].mean()) for a, b in GROUPS],
            }
        )
    return rows


def lines(rows: Iterable[dict[str, Any]]) -> Iterable[str]:
    """The table in Markdown: kept (predicted)."""
    yield (
        "| kept of the old plan (predicted) in actions | " + " | ".join(f"{a}-{b}" for a, b in GROUPS) + " |"
    )
    yield "|" + "---|" * (len(GROUPS) + 1)
    for row in rows:
        cells = (f"{k:.2f} ({p:.2f})" for k, p in zip(row["kept"], row["predicted"]))
        yield f"| {row['mask']} | {' | '.join(cells)} |"


def _replan(session: Session, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arm joints of the free and the old actions [h, 5], and of those under each mask [M, h, 5]."""
    engine, robot, config = session.engine, session.robot, session.engine.policy.config
    choices = tasks("reach")
    task = choices[seed % len(choices)]
    robot.reset(task, seed)
    buffer = TrajectoryBuffer(session.contract.joint_names, JointLimits.of(session.contract.joints), "async")
    buffer.reset(robot.state())
    arm = ArmControllers()
    arm.start(robot.state())
    noises = np.random.default_rng(seed).standard_normal(
        (3, config.horizon, config.action_dim), dtype=np.float32
    )
    for noise, frame, until in ((noises[0], 0, UNDER_WAY), (noises[1], UNDER_WAY, UNDER_WAY + PASSED)):
        now_ns = round(frame * FRAME_S * 1e9)
        with engine.observe(session.observe(task.instruction, now_ns)) as prefix:
            old = engine.act(prefix, noise=noise)
        sent = buffer.update(old, now_ns)
        assert sent is not None
        arm.accept(sent, now_ns)
        if frame:
            MovedTarget().happen(robot, seed)
        robot.advance(until * FRAME_S, arm)
    now_ns = round((UNDER_WAY + PASSED) * FRAME_S * 1e9)
    with engine.observe(session.observe(task.instruction, now_ns)) as prefix:
        free = engine.act(prefix, noise=noises[2]).actions
        guided = []
        for mask in MASKS.values():
            guidance = guidance_to(
                engine, prefix, old, DELAY, mask.execution, mask.schedule, max_weight=mask.max_weight
            )
            guided.append(engine.act(prefix, noise=noises[2], guidance=guidance).actions)
    known = config.horizon - PASSED
    return free[:known, :5], old.actions[PASSED:, :5], np.array(guided)[:, :known, :5]
