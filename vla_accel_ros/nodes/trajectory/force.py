"""The thread of the force sensors: from a sample to a command without the node's executor.

It polls for samples at twice their rate, 1000 to 2000 times a second. The guard (control/force) judges them,
and this thread sends its reactions. It also makes the ticks of controllers that are commanded at a fixed
rate: a tick waits for the sample that is about to come, so that its command is as fresh as possible.
Everything shared with the node is behind the lock of the adapters, which each side holds for microseconds.
The node takes over a reaction afterwards (control/force/taking_over.py). nodes/running/process.py makes sure
that this thread soon gets the GIL.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus
from std_srvs.srv import Trigger

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.watchdog import ClockWatch, MotionState
from vla_accel_ros.control.force.guard import ForceGuard, Reaction
from vla_accel_ros.control.force.sensor import Level
from vla_accel_ros.control.force.taking_over import TakingOver
from vla_accel_ros.nodes.adapters.outputs import Outputs
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.diagnostics import ERROR, OK, WARN, status
from vla_accel_ros.nodes.trajectory.force_sources import open_source
from vla_accel_ros.nodes.trajectory.hold import HOMING, Hold
from vla_accel_ros.nodes.trajectory.release import say

_LATENCIES = 4096
_IDLE_S = 0.01
_LEAST_SLEEP_S = 5e-5


class ForceLoop:
    """The force sensors of a trajectory node, from configure to cleanup. Without a contract's section `force`
    it does nothing.

    cancel_move: called with a reason to end a discrete move. If the sensors cannot be judged because of an
    error of this program, the robot stops until the node is restarted. latencies_ns: from the stamp of a
    sample to the command that it led to; reactions_ns: those of a stop or a retreat; the newest of each.
    """

    def __init__(self, hold: Hold, outputs: Outputs, contract: Contract) -> None:
        self._hold, self._node, self._outputs = hold, hold.node, outputs
        self.cancel_move: Callable[[str], object] = lambda why: None
        self._failed = ""
        self.latencies_ns: deque[int] = deque(maxlen=_LATENCIES)
        self.reactions_ns: deque[int] = deque(maxlen=_LATENCIES)
        self._over = threading.Event()
        self.guard = outputs.guard
        self._taking_over: TakingOver | None = None
        if self.guard is None or contract.force is None:
            return
        self._taking_over = TakingOver(self.guard, hold, outputs.lock, outputs.react)
        self._sources = [open_source(self._node, sensor) for sensor in contract.force.sensors]
        fastest_hz = max(sensor.rate_hz for sensor in contract.force.sensors)
        self._period_s = 1.0 / min(max(2.0 * fastest_hz, 1000.0), 2000.0)
        self._paces = [
            (adapter, Pace(adapter.controller.rate_hz, fastest_hz))
            for adapter in outputs.adapters
            if adapter.controller.rate_hz
        ]
        self._clock = ClockWatch(self._node.now_ns)
        self._thread = threading.Thread(target=self._run, name="force", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; on release."""
        if self.guard is None:
            return
        self._over.set()
        self._thread.join(2.0)
        for source in self._sources:
            source.close()

    def begin(self, follower: ChunkFollower) -> None:
        """Motion starts anew with this follower."""
        self._follower = follower
        if self._taking_over is not None:
            self._taking_over.begin(follower)

    def adopt(self, set_by_ns: int = 0) -> None:
        """Take over the reactions since the last call. Call it before anything is decided about motion.

        set_by_ns: how far the clock has been set since then.
        """
        if self._taking_over is not None:
            self._taking_over.adopt(self._node.now_ns() - set_by_ns)

    def stop(self) -> None:
        """Take over the reactions, and end a retreat: the node is about to be inactive."""
        if self._taking_over is not None:
            self._taking_over.end_retreat(self._node.now_ns())

    def watch(self) -> None:
        """Hold and release the robot according to the sensors; call it at the watchdog's rate, after the
        follower's step."""
        if self._taking_over is None:
            return
        if self._failed and self._failed not in self._hold.holds:
            self._hold.fault(self._failed)
            self.cancel_move(self._failed)
        sentence = self._taking_over.watch(self._node.now_ns())
        if sentence and HOMING in self._hold.holds and sentence not in self._hold.holds:
            self._hold.fault(sentence)
            self.cancel_move(sentence)

    def forgive(self) -> None:
        """A person has resumed."""
        if self._taking_over is not None:
            self._taking_over.forgive()

    def tare(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """~/tare: measure the bias again, while the arm stands still."""
        if self.guard is None or not any(watch.sensor.tared for watch in self.guard.watches):
            return say(response, False, "no sensor of the contract has a bias to tare")
        if not self._node.active:
            return say(response, False, "the trajectory node is not active: activate it first")
        if self._follower.safety.state is not MotionState.HOLDING:
            return say(response, False, "the arm moves: call ~/hold first; the bias is measured at rest")
        with self._outputs.lock:
            self.guard.begin_tare()
        return say(response, True, "taring; motion continues when there is a bias (see /diagnostics)")

    def statuses(self) -> list[DiagnosticStatus]:
        """A line of diagnostics for each sensor."""
        if self.guard is None:
            return []
        now_ns = self._node.now_ns()
        with self._outputs.lock:
            told = [(w.sensor, w.wrong, w.late(now_ns) or w.untared, list(w.values), w.level, w.sentence,
                     list(w.bias), w.stamp_ns, w.count) for w in self.guard.watches]  # fmt: skip
            latencies, reactions = list(self.latencies_ns), list(self.reactions_ns)
        lines = []
        for sensor, wrong, late, values, level, contact, bias, stamp_ns, count in told:
            names = [f"{q.name} {axis}".strip() for q in sensor.quantities for axis in q.axes]
            numbers: dict[str, object] = dict(zip(names, values))
            numbers |= {f"bias of {name}": one for name, one in zip(names, bias)}
            numbers["age [ms]"] = "never seen" if stamp_ns is None else (now_ns - stamp_ns) * 1e-6
            numbers["samples"], numbers["gave way"] = count, self.guard.yields
            numbers |= _quantiles("sample to command", latencies) | _quantiles("to reaction", reactions)
            severity = ERROR if wrong else WARN if late or level is not Level.FREE else OK
            lines.append(
                status(f"force {sensor.name}", severity, wrong or late or contact or "free", numbers)
            )
        return lines

    @property
    def _lead_ns(self) -> int:
        return round(self._follower.buffer.kept_s * 1e9)

    def _prioritise(self) -> None:
        priority = value(self._node, "force_priority")
        if priority:
            try:
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
            except OSError as error:
                self._node.get_logger().warning(
                    f"force_priority = {priority} is not granted ({error.strerror}): give this user "
                    "rtprio in /etc/security/limits.conf"
                )

    def _run(self) -> None:
        assert self.guard is not None
        self._prioritise()
        due_s = time.monotonic()
        while not self._over.is_set():
            if not self._node.active:
                self._over.wait(_IDLE_S)
                due_s = time.monotonic()
                continue
            with self._outputs.lock:
                if self._node.active:
                    self._step(self.guard)
            now_s = time.monotonic()
            due_s = max(due_s + self._period_s, now_s + _LEAST_SLEEP_S)
            time.sleep(due_s - now_s)

    def _step(self, guard: ForceGuard) -> None:
        reaction, newest_ns = None, None
        if not self._failed:
            try:
                reaction, newest_ns = self._look(guard)
            except Exception as error:  # commands go on, so that the arm comes to rest within its limits
                self._failed = f"the force sensors' thread failed ({error!r}): restart the trajectory node"
                self._node.get_logger().error(f"{self._failed}\n{traceback.format_exc()}")
        steady_s = time.monotonic()
        told = reaction is not None
        for adapter, pace in self._paces:
            if reaction is not None or pace.due(steady_s, newest_ns is not None):
                pace.told_s = steady_s
                adapter.tick(self._node.now_ns())
                told = True
        if told and newest_ns is not None:
            latency_ns = self._node.now_ns() - newest_ns
            self.latencies_ns.append(latency_ns)
            if reaction is not None:
                self.reactions_ns.append(latency_ns)

    def _look(self, guard: ForceGuard) -> tuple[Reaction | None, int | None]:
        """Read the sensors and react. Returns the reaction, and the stamp of the newest sample."""
        now_ns = self._node.now_ns()
        if self._clock.jump_ns() and not self._node.get_clock().ros_time_is_active:
            guard.armed = False  # the path's times have lost their meaning
            for adapter, _ in self._paces:
                adapter.stop(None, now_ns)
        newest_ns = None
        for i, source in enumerate(self._sources):
            for stamp_ns, sample in source.read():
                guard.take(i, sample, stamp_ns, now_ns)
                newest_ns = stamp_ns if newest_ns is None else max(stamp_ns, newest_ns)
            guard.watches[i].note = source.problem or guard.watches[i].note
        reaction = guard.step(now_ns, self._lead_ns)
        if reaction is not None:
            self._outputs.react(reaction)
        return reaction, newest_ns


class Pace:
    """When a tick is due: about every period, together with a sample if one comes about then."""

    def __init__(self, rate_hz: float, samples_hz: float) -> None:
        self._period_s = 1.0 / rate_hz
        self._slack_s = min(0.5 / samples_hz, 0.5 * self._period_s)
        self.told_s = 0.0

    def due(self, now_s: float, fresh: bool) -> bool:
        """Whether a tick is due. fresh: whether there is a new sample."""
        passed_s = now_s - self.told_s
        return passed_s >= self._period_s + (-self._slack_s if fresh else self._slack_s)


def _quantiles(what: str, latencies_ns: list[int]) -> dict[str, object]:
    if not latencies_ns:
        return {}
    p50, p99, most = np.quantile(latencies_ns, (0.5, 0.99, 1.0)) * 1e-6
    return {f"{what} p50 [ms]": p50, f"{what} p99 [ms]": p99, f"{what} max [ms]": most}
