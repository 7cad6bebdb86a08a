"""The whole stack on the simulated arm, as processes, and what its recorded motion says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import numpy as np
from builders import CALM, make_checkpoint, make_config
from calling import call, stop_cameras
from running import NodeProcess
from std_srvs.srv import Trigger

from vla_accel_ros.nodes.clients.listener import Joints
from vla_accel_ros.nodes.clients.operator import Operator

# At rest is a hundredth of full speed; physics and the gripper's spring never are quite still.
REST_RAD_S = 0.03
MOVING_RAD_S = 0.3
MOVED_RAD = 0.1
# A third less work for the machine than 224 x 224 pixels at 30 Hz and 125 joint states a second.
CALM_SENSORS = {"image_width": 64, "image_height": 64, "camera_hz": 15.0, "joint_hz": 50.0}


class Stack:
    """sim_robot, inference and trajectory with a policy of random weights, which moves the arm without a
    goal. trajectory: parameters of that node; inference: of that."""

    def __init__(
        self,
        start: Callable[..., NodeProcess],
        folder: Path,
        namespace: str = "",
        sim_time: bool = False,
        inference: Mapping[str, object] = MappingProxyType({}),
        **trajectory: object,
    ) -> None:
        model = make_checkpoint(folder / "random_policy", make_config(horizon=32), reach=CALM)
        clock = {"use_sim_time": sim_time}
        self.robot = start("sim_robot", namespace, **clock, **CALM_SENSORS)
        # A busy machine may deliver a trajectory late; what is later than twice lead_s jerks.
        trajectory = {"lead_s": 0.05, **trajectory}
        self.trajectory = start("trajectory", namespace, autostart=True, **clock, **trajectory)
        self.inference = start(
            "inference",
            namespace,
            autostart=True,
            model=str(model),
            steps=2,
            language_hz=0.5,
            **clock,
            **inference,
        )

    def mend(self, operator: Operator) -> None:
        """Bring back what the test before left ended, silent or held, and set it going; for a shared one."""
        processes = (self.robot, self.trajectory, self.inference)
        for process in processes:
            if process.process.poll() is not None:
                process.start()
        stop_cameras(operator)
        call(operator, Trigger, "trajectory/resume", Trigger.Request())  # which may not be held
        set_going(operator)
        for process in processes:
            process.forget_log()


def set_going(operator: Operator) -> None:
    """Tell the robot something to do and wait until it moves, and the operator hears what it is sent."""
    operator.wait(lambda: operator.measured, 90.0, "joint state")
    operator.instruct(operator.reset("reach", 1))
    since_ns = operator.now_ns()
    wait_for_motion(operator)
    wait_for_commands(operator, since_ns)


def wait_for_commands(operator: Operator, since_ns: int) -> None:
    """Wait until the operator has heard of a command to each controller: the robot may have discovered who
    sends them before the operator has."""
    commanded = {tuple(c.joints) for c in operator.contract.controllers if c.kind == "joint_trajectory"}

    def heard() -> set[tuple[str, ...]]:
        return {sent.trajectory.joints for sent in operator.sent if sent.received_ns >= since_ns}

    operator.wait(lambda: commanded <= heard(), 90.0, "command to each controller")


def wait_for_recorder(operator: Operator, *more: str, image: str = "image_raw") -> None:
    """Wait until the recorder listens to what a replay needs, and to more topics. image: the end of the
    cameras' topics."""
    node = operator.node
    cameras = ("camera/front/" + image, "camera/wrist/" + image)
    topics = (*cameras, "joint_states", "observed", "action_chunk", *more)

    def listens(topic: str) -> bool:
        subscriptions = node.get_subscriptions_info_by_topic(node.resolve_topic_name(topic))
        return any(subscription.node_name == "recorder" for subscription in subscriptions)

    operator.wait(lambda: all(map(listens, topics)), 180.0, "recorder that listens to all")


def wait_for_motion(operator: Operator, timeout_s: float = 120.0) -> None:
    """Wait until a joint moves at some speed."""
    since_ns = operator.now_ns()
    operator.wait(
        lambda: any(j.stamp_ns > since_ns and speed(j) > MOVING_RAD_S for j in operator.joints[-50:]),
        timeout_s,
        "motion",
    )


def wait_for_rest(operator: Operator, timeout_s: float = 30.0) -> None:
    """Wait until the arm has stood still for some tenths of a second."""
    operator.wait(lambda: all(speed(j) < REST_RAD_S for j in operator.joints[-30:]), timeout_s, "standstill")


def wait_until_ns(operator: Operator, stamp_ns: int) -> None:
    """Wait for a joint state of this time."""
    operator.wait(lambda: operator.measured.stamp_ns >= stamp_ns, 90.0, "joint state of a later time")


def assert_ends_at_rest(operator: Operator) -> None:
    """What each controller was sent last is a stop, and not the rest of a chunk.

    A stop begins after what delivery may take, twice lead_max_s.
    """
    for controller in operator.contract.controllers:
        sent = [s for s in operator.sent if s.trajectory.joints == tuple(controller.joints)]
        last = sent[-1].trajectory
        _, velocity = last.sample(last.start_ns + 500_000_000)
        times_ms = [(s.received_ns - last.start_ns) // 1_000_000 for s in sent[-3:]]
        assert not velocity.any(), f"{velocity} after 0.5 s of {len(last)} points, sent at {times_ms} ms"


def speed(state: Joints) -> float:
    """Greatest |velocity| of the joints, rad/s."""
    return float(np.abs(state.velocities).max())


def between(operator: Operator, start_ns: int, end_ns: int) -> list[Joints]:
    """The joint states of a time."""
    return [j for j in operator.joints if start_ns <= j.stamp_ns <= end_ns]


def at_rest_from_ns(operator: Operator, since_ns: int) -> int:
    """Stamp of the first joint state after `since_ns` from which on the arm stood still."""
    moving = [j.stamp_ns for j in operator.joints if j.stamp_ns >= since_ns and speed(j) >= REST_RAD_S]
    return max(moving, default=since_ns)


def moved(operator: Operator, since_ns: int) -> Callable[[], bool]:
    """Whether a joint has gone some way since then."""

    def condition() -> bool:
        states = np.array([j.positions for j in operator.joints if j.stamp_ns >= since_ns])
        return bool(len(states)) and bool(np.ptp(states, axis=0).max() > MOVED_RAD)

    return condition


def rests(operator: Operator) -> bool:
    states = np.array([j.positions for j in operator.joints[-50:]])
    return len(states) == 50 and bool(np.ptp(states, axis=0).max() < 1e-9)


def commanded_acceleration(operator: Operator, since_ns: int) -> np.ndarray:
    """Greatest |acceleration| [D] of every trajectory sent since then, over its own limit; 1 is at the
    limit."""
    limits = {joint.name: joint.acceleration for joint in operator.contract.joints}
    greatest = dict.fromkeys(limits, 0.0)
    for sent in operator.sent:
        if sent.received_ns >= since_ns and len(sent.trajectory) > 1:
            times = np.arange(sent.trajectory.start_ns, sent.trajectory.end_ns, 1_000_000)
            _, velocity = sent.trajectory.sample(times)
            hardest = np.abs(np.diff(velocity, axis=0)).max(axis=0) * 1000 if len(times) > 1 else []
            for name, acceleration in zip(sent.trajectory.joints, hardest):
                greatest[name] = max(greatest[name], acceleration / limits[name])
    return np.array(list(greatest.values()))


def measured_leap(operator: Operator, since_ns: int) -> float:
    """Greatest step between two joint states, over what full speed allows in the time between; 1 is full
    speed."""
    top = np.array([joint.velocity for joint in operator.contract.joints])
    states = [j for j in operator.joints if j.stamp_ns >= since_ns]
    steps = [
        np.abs(b.positions - a.positions) / (top * max(b.stamp_ns - a.stamp_ns, 1) * 1e-9)
        for a, b in pairwise(states)
    ]
    return float(np.max(steps))
