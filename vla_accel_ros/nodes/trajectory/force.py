"""The thread of the force sensors: from a sample to a command without the node's executor.

It polls for samples at twice their rate, 1000 to 2000 times a second; what they mean is decided in
control/force. Everything shared with the node is behind the lock of the outputs, which each side holds for
microseconds. nodes/running/process.py makes sure that this thread soon gets the GIL.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Sequence

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_ros.control.force.reflexes import Reflexes
from vla_accel_ros.control.force.sensor import ForceSensor, Level
from vla_accel_ros.control.motion import Motion
from vla_accel_ros.nodes.declare import value
from vla_accel_ros.nodes.diagnostics import ERROR, OK, WARN, status
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.trajectory.force_sources import open_source

_IDLE_S = 0.01
_LEAST_SLEEP_S = 5e-5


class ForceLoop:
    """The force sensors of a trajectory node, from configure to cleanup. Without sensors it does nothing.

    If they cannot be judged because of an error of this program, commands go on, so that the arm comes to
    rest within its limits.
    """

    def __init__(self, node: ManagedNode, motion: Motion, sensors: Sequence[ForceSensor]) -> None:
        self._node, self._motion = node, motion
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if motion.force is None:
            return
        self._sources = [open_source(node, sensor) for sensor in sensors]
        self._period_s = 1.0 / min(max(2.0 * max(sensor.rate_hz for sensor in sensors), 1000.0), 2000.0)
        self._thread = threading.Thread(
            target=self._run, args=(motion.force.reflexes,), name="force", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread; on release."""
        if self._thread is None:
            return
        self._over.set()
        self._thread.join(2.0)
        for source in self._sources:
            source.close()

    def statuses(self) -> list[DiagnosticStatus]:
        """A line of diagnostics for each sensor."""
        if self._motion.force is None:
            return []
        reflexes, guard, now_ns = self._motion.force.reflexes, self._motion.force.guard, self._node.now_ns()
        with self._motion.robot.outputs.lock:
            watches = [(w.sensor, w.wrong, w.late(now_ns) or w.untared, list(w.values), w.level, w.sentence,
                        list(w.bias), w.stamp_ns, w.count) for w in guard.watches]  # fmt: skip
            latencies, reactions = list(reflexes.latencies_ns), list(reflexes.reactions_ns)
        lines = []
        for sensor, fault, problem, values, level, contact, bias, stamp_ns, count in watches:
            names = [f"{q.name} {axis}".strip() for q in sensor.quantities for axis in q.axes]
            numbers: dict[str, object] = dict(zip(names, values))
            numbers |= {f"bias of {name}": number for name, number in zip(names, bias)}
            numbers["age [ms]"] = "never seen" if stamp_ns is None else (now_ns - stamp_ns) * 1e-6
            numbers["samples"], numbers["gave way"] = count, guard.yields
            numbers |= _quantiles("sample to command", latencies) | _quantiles("to reaction", reactions)
            severity = ERROR if fault else WARN if problem or level is not Level.FREE else OK
            lines.append(
                status(f"force {sensor.name}", severity, fault or problem or contact or "free", numbers)
            )
        return lines

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

    def _run(self, reflexes: Reflexes) -> None:
        self._prioritise()
        due_s = time.monotonic()
        while not self._over.is_set():
            if not self._node.active:
                self._over.wait(_IDLE_S)
                due_s = time.monotonic()
                continue
            with self._motion.robot.outputs.lock:
                if self._node.active:
                    self._step(reflexes)
            now_s = time.monotonic()
            due_s = max(due_s + self._period_s, now_s + _LEAST_SLEEP_S)
            time.sleep(due_s - now_s)

    def _step(self, reflexes: Reflexes) -> None:
        newest_ns = None
        if not reflexes.failed:
            try:
                samples = [source.read() for source in self._sources]
                newest_ns = reflexes.feel(samples, [source.problem for source in self._sources])
            except Exception as error:
                reflexes.failed = f"the force sensors' thread failed ({error!r}): restart the trajectory node"
                self._node.get_logger().error(f"{reflexes.failed}\n{traceback.format_exc()}")
        reflexes.tick(newest_ns)


def _quantiles(name: str, latencies_ns: list[int]) -> dict[str, object]:
    if not latencies_ns:
        return {}
    p50, p99, longest = np.quantile(latencies_ns, (0.5, 0.99, 1.0)) * 1e-6
    return {f"{name} p50 [ms]": p50, f"{name} p99 [ms]": p99, f"{name} max [ms]": longest}
