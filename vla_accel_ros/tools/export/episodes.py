"""Episodes of a bag: observations, states, instructions and actions at a fixed rate.

Frames lie on a grid that begins with the first camera's first image. A frame has each camera's nearest image,
the joints at that time, and as its action the commanded joints one step later, as the first action of a chunk
is due one step after its observation. If a stream has nothing young enough by the contract, or the robot was
held, the episode ends and the next one begins after the gap: no frame is made up, and none teaches to stand.
While a person has taken the arm over, the action is what the person commanded, and the frame says so. The way
to the person's leader arm is nobody's action: its frames are left out, and the episode goes on after them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import FURTHEST
from vla_accel_ros.control.kinematics.hand import TOOL
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.tools.export.series import distance_s, nearest
from vla_accel_ros.tools.export.streams import ALIGNING, HUMAN, Streams

SHORTEST = 2
STILL = 1e-3
"""A joint that moves less than this in a step (rad or m) stands."""


@dataclass(frozen=True)
class Episode:
    """N frames. states: float32 [N, S], actions: float32 [N, A], in the policy's units. stamps_ns: camera ->
    int64 [N], of the image in each frame. tasks: of each frame. subtasks: likewise, "" where the task itself
    is acted on. human: bool [N], whether a person commanded the arm. outcome: as a person marked it, empty if
    the bag has no marks. ends: the marked episode ends with these frames, and goes on after no gap."""

    states: np.ndarray
    actions: np.ndarray
    stamps_ns: dict[str, np.ndarray]
    tasks: list[str]
    subtasks: list[str]
    human: np.ndarray
    outcome: str = ""
    ends: bool = True

    def __len__(self) -> int:
        return len(self.states)

    def repeated(self, camera: str) -> int:
        """Return how many frames have the same image of a camera as the frame before."""
        return int((np.diff(self.stamps_ns[camera]) == 0).sum())


def episodes(
    streams: Streams, fps: int, actions: str = "commanded", split: bool = True
) -> tuple[list[Episode], int]:
    """Return the episodes of a bag, in order, and how many frames were left out because the robot was held.

    actions: commanded joints or, for commands that are no positions and for hand-guided robots, the joints
    measured one step later; a held robot may be guided by hand then, so only where it stands is left out.
    split: another instruction begins another episode, unless a person marked the episodes.
    Raises ValueError, with one sentence, if the bag yields nothing.
    """
    contract = streams.contract
    if actions == "commanded" and contract.led_joints:
        raise ValueError(f"{contract.robot} is led by its hand, not positions: give --actions measured")
    if actions == "measured" and contract.base is not None and not contract.base.odometry:
        raise ValueError(f"{contract.robot} has a base without odometry: give --actions commanded")
    for hand, _ in contract.hands:
        tf, by_tool = hand.tf or hand, hand.axes == TOOL
        apart = tf.tip != hand.tip or (tf.base != hand.base and not by_tool)
        if hand.relative_to == "observation" and apart:
            raise ValueError(
                f"hands.{hand.name}: its state is of {tf.tip} in {tf.base} and its changes are of {hand.tip} "
                f"by the axes of {hand.tip if by_tool else hand.base}: no poses in a dataset say both; keep "
                "the bag"
            )
    first_ns, last_ns = streams.span_ns(actions == "commanded")
    period_ns = 1e9 / fps
    reference = np.array(streams.images[contract.cameras[0].name], np.int64)
    first_image = int(np.searchsorted(reference, first_ns))
    if first_image == len(reference):
        raise ValueError(f"{streams.bag.path} ends before every stream has begun: record longer")
    length_ns = max(0.0, last_ns - reference[first_image])
    count = int(length_ns / period_ns) + 1
    times_ns = reference[first_image] + np.round(np.arange(count) * period_ns).astype(np.int64)
    stamps_ns, whole = {}, np.ones(count, bool)
    for camera in contract.cameras:
        stamps = np.array(streams.images[camera.name], np.int64)
        stamps_ns[camera.name] = stamps[nearest(stamps, times_ns)]
        whole &= distance_s(stamps, times_ns) <= camera.max_age_s
    measured, gap_s = streams.joints(times_ns)
    next_ns = times_ns + round(period_ns)
    sent, joints = actions == "commanded", len(contract.joints)

    def counted(values: np.ndarray) -> np.ndarray:
        """Commands count turns, drivers may not."""
        near = JointLimits.of(contract.joints).near(values[:, :joints], measured[:, :joints])
        return np.hstack([near, values[:, joints:]])

    targets = counted(streams.commanded(next_ns) if sent else streams.joints(next_ns)[0])
    before = counted(streams.commanded(times_ns)) if sent else measured
    poses, recent = streams.poses(times_ns)
    whole &= recent
    whole &= (gap_s <= contract.joint_states.max_age_s) & (np.abs(targets) <= FURTHEST).all(axis=1)
    if actions == "measured":
        whole &= next_ns <= last_ns
    holding = streams.held(times_ns)
    if actions == "measured":
        way = np.hstack([targets[:, :joints] - measured[:, :joints], targets[:, joints:]])
        holding &= (np.abs(way) < STILL).all(axis=1)
    left_out = int((whole & holding).sum())
    whole &= ~holding
    human, used = streams.reported(times_ns, HUMAN), ~streams.reported(times_ns, ALIGNING)
    tasks, subtasks = streams.tasks(times_ns), streams.subtasks(times_ns)
    whole &= np.array([bool(task.strip()) for task in tasks])
    groups: list[Any] = tasks if split else [0] * count
    if streams.marked:
        groups = streams.numbers(times_ns).tolist()
        whole &= np.array(groups) >= 0
    ranges, form = _runs(whole, used, groups), row_contract(contract)
    last_of = {groups[rows[0]]: rows[0] for rows in ranges}
    runs = [
        Episode(
            np.array([contract.to_policy(measured[i], poses[i]) for i in rows], np.float32),
            np.array(
                [form.to_row(targets[i], measured[i], before[i], 1.0 / fps, poses[i]) for i in rows],
                np.float32,
            ),
            {camera: stamps[rows] for camera, stamps in stamps_ns.items()},
            [tasks[row] for row in rows],
            [subtasks[row] for row in rows],
            human[rows],
            streams.episodes[groups[rows[0]]].outcome if streams.marked else "",
            not streams.marked or last_of[groups[rows[0]]] == rows[0],
        )
        for rows in ranges
    ]
    if not runs:
        hint = f"; in {left_out} others the robot was held" if left_out else ""
        raise ValueError(
            f"{streams.bag.path} has no {SHORTEST} frames in a row with a value of every stream"
            f"{' in a marked episode' * streams.marked}{hint}: see vla plot {streams.bag.path}"
        )
    return runs, left_out


def row_contract(contract: Contract) -> Contract:
    """Return the contract whose rows are in a dataset: in place of a hand's twists those of the joints."""
    if contract.actions != "twist":
        return contract
    return replace(contract, actions="joints", twist=None, controllers=())


def _runs(whole: np.ndarray, used: np.ndarray, groups: list[Any]) -> list[np.ndarray]:
    """Return the used rows, int [N], of every range of one group with no gap in it, SHORTEST at least."""
    joined = [a and b and x == y for (a, b), (x, y) in zip(pairwise(whole), pairwise(groups))]
    cuts = [0, *(i for i, same in enumerate(joined, 1) if not same), len(whole)]
    ranges = [np.arange(a, b) for a, b in pairwise(cuts) if whole[a]]
    return [rows[used[rows]] for rows in ranges if used[rows].sum() >= SHORTEST]
