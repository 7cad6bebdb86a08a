"""The outcome of one fault: stop, peaks of the executed motion, reported reasons, and how the robot went
on."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np
from executed import PERIOD_NS, TrajectoryController
from std_srvs.srv import Trigger

from faulting.cases import Case
from faulting.robot import Robot, Stalled
from vla_accel_msgs.msg import Motion
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import TrajectoryPoint

S = 1_000_000_000


@dataclass
class Row:
    """One run of a fault. stop_s: from the fault until the joints stood, None when they never did.
    position, velocity, acceleration: peak of the executed path, 1 at the limit (position: 1 + share of the
    range beyond). resumed_s: from the mend until they moved by themselves, None when they did not. person:
    what a person had to call, "" for nothing. said: what `motion` told.
    """

    name: str
    title: str
    stop_s: float | None = None
    position: float = 0.0
    velocity: float = 0.0
    acceleration: float = 0.0
    said: list[str] = field(default_factory=list)
    resumed_s: float | None = None
    person: str = ""
    note: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return the rounded values for JSON."""
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(self).items()}

    @property
    def exceeds(self) -> bool:
        """Whether a limit was exceeded."""
        return max(self.velocity, self.acceleration, self.position) > 1.001


class Void(RuntimeError):
    """The relay was late itself: the run says nothing about the nodes."""


def measure(robot: Robot, case: Case, seed: int, strict: bool = True) -> Row:
    """Make the fault, end it, and measure what the robot does. Raises Stalled if the robot did not move
    before, and, if strict, Void."""
    robot.set_going(seed)
    robot.poll(robot.under_way, 30.0, "motion at speed")
    row = Row(case.name, case.title)
    told = len(robot.operator.motions)
    robot.began_ns, robot.orphans = robot.relay.time_ns(), []
    case.begin(robot)
    began_ns = robot.began_ns
    time.sleep(case.lasts_s)
    case.end(robot)
    mended_ns = robot.relay.time_ns()
    dead = "sim_robot" in case.name  # whose joints stand where nobody is told of
    rest_ns = _until(lambda: robot.rested_at_ns(began_ns), 10.0 if dead else 2.0)
    if rest_ns is not None and rest_ns > mended_ns + S and not dead:
        rest_ns = None  # of itself
    if rest_ns is not None:
        row.stop_s = (rest_ns - began_ns) * 1e-9
    if case.stack == "launched":
        row.note = f"{len(robot.orphans)} nodes were left" if robot.orphans else "no node was left"
        row.person = "start it again"
    elif rest_ns is not None:
        _goes_on(robot, case, row, rest_ns, mended_ns)
    else:
        row.resumed_s = 0.0
    ended_ns = robot.relay.time_ns()
    starts = range(mended_ns, mended_ns + S)  # of a process, which stops this one while the joints stand
    gaps = [gap for t_ns, gap in robot.relay.gaps if t_ns > began_ns - S and t_ns not in starts]
    if gaps and strict:
        raise Void(f"this bench passed nothing on for {max(gaps) * 1e-9:.3f} s")
    row.said = said(robot.operator.motions[told:])
    row.position, row.velocity, row.acceleration = peaks(robot, began_ns - S // 2, ended_ns)
    return row


def _goes_on(robot: Robot, case: Case, row: Row, rest_ns: int, mended_ns: int) -> None:
    since_ns = mended_ns + S // 2 if case.moves else rest_ns + S // 5
    moved_ns = _until(lambda: robot.moved_at_ns(since_ns), case.patience_s)
    if moved_ns is not None:
        row.resumed_s = (moved_ns - mended_ns) * 1e-9
        return
    for name in case.orders:
        answer = robot.asked(partial(_called, robot, name))
        row.person = ", ".join(filter(None, (row.person, f"~/{name.rpartition('/')[2]}")))
        if answer is None:
            row.note = f"{name} did not answer"
    if not robot.moves_within(10.0):
        row.note = "; ".join(
            filter(None, (row.note, f"does not move after it: {'; '.join(robot.reasons())}"))
        )


def _called(robot: Robot, name: str) -> str:
    answer = robot.operator.call(Trigger, name, Trigger.Request(), 5.0)
    return str(answer.message)


def said(motions: list[Motion]) -> list[str]:
    """Return the reasons in the order they were published, each once; running numbers are left out."""
    seen: dict[str, str] = {}
    for motion in motions:
        for reason in motion.reasons:
            seen.setdefault(re.sub(r"[\d.]+", "#", reason), reason)
    return list(seen.values())


def peaks(robot: Robot, since_ns: int, until_ns: int) -> tuple[float, float, float]:
    """Return the peaks of all controllers relative to the limits: (position, velocity, acceleration)."""
    joints = {joint.name: joint for joint in robot.contract.joints}
    worst = np.zeros(3)
    for controller in robot.contract.controllers:
        sent = [one for one in robot.relay.sent if one[1] == controller.topic and one[0] < until_ns]
        before = [one for one in sent if one[0] < since_ns][-3:]
        played = [*before, *(one for one in sent if one[0] >= since_ns)]
        if not played:
            continue
        first_ns, _, first = played[0]
        where = first.select(controller.joints).sample(first_ns)[0]
        model = TrajectoryController(controller.joints, where, from_desired=True)
        model.starts[0] = first_ns - PERIOD_NS
        restarted = [t_ns for t_ns in robot.restarted_ns if t_ns > first_ns]
        for t_ns, _, trajectory in played:
            while restarted and restarted[0] < t_ns:
                again_ns, position, _ = robot.after(restarted[0])[0]
                if again_ns > t_ns:
                    break  # the controllers are not there yet: nobody receives it
                columns = [robot.contract.joint_names.index(name) for name in controller.joints]
                model.hold(position[columns], again_ns)  # where the joints begin
                restarted.pop(0)
            else:
                model.accept(trajectory.select(controller.joints), t_ns, TrajectoryPoint(t_ns, where))
        limits = JointLimits.of(joints[name] for name in controller.joints)
        times, positions = model.path(until_ns)
        keep = times >= max(since_ns, first_ns + 2 * PERIOD_NS)
        found = _peaks(times[keep], positions[keep], limits, model.spared)
        worst = np.maximum(worst, found)
    return float(worst[0]), float(worst[1]), float(worst[2])


def _peaks(
    times: np.ndarray, positions: np.ndarray, limits: JointLimits, spared: list[tuple[int, int]]
) -> np.ndarray:
    if len(positions) < 3:
        return np.zeros(3)
    free = np.ones((len(times), 1), bool)
    for begin, end in spared:
        free[np.searchsorted(times, begin) : np.searchsorted(times, end)] = False
    dt_s = PERIOD_NS * 1e-9
    beyond = np.maximum(positions - limits.upper, limits.lower - positions) / (limits.upper - limits.lower)
    speed = np.abs(np.diff(positions, axis=0)) / dt_s / limits.velocity
    change = np.abs(np.diff(positions, n=2, axis=0)) / dt_s**2 / limits.acceleration
    speed, change = speed * (free[1:] & free[:-1]), change * (free[2:] & free[1:-1] & free[:-2])
    return np.array([1.0 + max(beyond.max(), 0.0), speed.max(), change.max()])


def _until(condition: object, timeout_s: float) -> int | None:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        value = condition()  # type: ignore[operator]
        if value is not None:
            return value
        time.sleep(0.02)
    return None


__all__ = ["Row", "Stalled", "measure"]
