"""Records everything on a robot's topics in bounded memory, and gives snapshots.

It is the base of the operator and of other observers: it subscribes, records, and lets other threads wait for
a condition. `wait` never sleeps a fixed time: it evaluates the condition again whenever a message has
arrived, and raises an error of one sentence if the condition does not become true in time. An invalid chunk
or trajectory is recorded as a refusal.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from vla_accel_msgs.msg import ActionChunk, GroundTruth, LanguageOutput, LoopStats, Motion
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.recording.robots import of_robot
from vla_accel_ros.types import Chunk

T = TypeVar("T")


@dataclass(frozen=True)
class Joints:
    """A measured joint state: float64 [D] in the contract's order; velocities are nan if not reported."""

    stamp_ns: int
    positions: np.ndarray
    velocities: np.ndarray


@dataclass(frozen=True)
class Sent:
    """A trajectory seen on a controller's topic at received_ns."""

    received_ns: int
    trajectory: Trajectory


@dataclass(frozen=True)
class Received:
    """A chunk (ROS units) that arrived at received_ns; inference_s: how long its action request took."""

    received_ns: int
    chunk: Chunk
    inference_s: float


def _all(name: str) -> Any:
    return property(lambda listener: listener._snapshot(name))


def _newest(name: str) -> Any:
    return property(lambda listener: listener._last(name))


class Listener:
    """Subscribes with a node to the topics of one robot; someone else spins the node, in one thread.

    contract: names the joints and topics. memory: entries kept of each record.

    Attributes, oldest first: `chunks`; `answers`, each with the whole text so far; `truths` of the simulator;
    measured `joints`; trajectories `sent` to the controllers; `motions`, the trajectory node's reports;
    `reports`, statistics of all loops; `refused`, sentences about invalid chunks and trajectories. The newest
    of some: `answer`, `truth`, `measured`.
    """

    chunks: list[Received] = _all("chunks")
    answers: list[LanguageOutput] = _all("answers")
    truths: list[GroundTruth] = _all("truths")
    joints: list[Joints] = _all("joints")
    sent: list[Sent] = _all("sent")
    motions: list[Motion] = _all("motions")
    reports: list[LoopStats] = _all("reports")
    refused: list[str] = _all("refused")
    answer: LanguageOutput | None = _newest("answers")
    truth: GroundTruth | None = _newest("truths")
    measured: Joints | None = _newest("joints")

    def __init__(self, node: Node, contract: Contract, memory: int) -> None:
        self.node, self.contract = node, contract
        self._changed = threading.Condition()
        self._changes = 0
        self._error: Exception | None = None
        self._records: dict[str, deque] = {
            name: deque(maxlen=memory)
            for name in ("chunks", "answers", "truths", "joints", "sent", "reports", "refused", "motions")
        }
        self._loops: dict[str, LoopStats] = {}
        self._diagnostics: dict[str, DiagnosticStatus] = {}
        self._subscribe()

    def now_ns(self) -> int:
        """ROS time in nanoseconds."""
        return self.node.get_clock().now().nanoseconds

    @property
    def loops(self) -> dict[str, LoopStats]:
        """Newest statistics of each loop by name; "image_to_trajectory" holds the ages of images behind
        trajectories."""
        with self._changed:
            return dict(self._loops)

    @property
    def diagnostics(self) -> dict[str, DiagnosticStatus]:
        """Newest diagnostics of this robot's nodes, by "<node>: <item>" without the namespace."""
        with self._changed:
            return dict(self._diagnostics)

    def wait(self, condition: Callable[[], T], timeout_s: float, what: str) -> T:
        """Return the condition's first true value; it is evaluated again whenever a message arrives.

        Raises TimeoutError "no <what> within <timeout_s> s", and RuntimeError if the spinning thread has
        failed.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._changed:
                changes = self._changes
                if self._error is not None:
                    raise RuntimeError("the thread that receives the topics has ended") from self._error
            result = condition()
            if result:
                return result
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0.0:
                raise TimeoutError(f"no {what} within {timeout_s:g} s")
            with self._changed:
                if self._changes == changes:
                    self._changed.wait(timeout=min(remaining_s, 0.2))

    def forget(self) -> None:
        """Keep the statistics of loops, and the newest entry of each other record, so that a long run stays
        small."""
        with self._changed:
            for name, entries in self._records.items():
                while name != "reports" and len(entries) > 1:
                    entries.popleft()

    def changed(self, _: object = None) -> None:
        """Wake the waiting threads to evaluate their conditions again."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def failed(self, error: Exception) -> None:
        """The spinning thread has failed: `wait` raises this at once instead of timing out."""
        with self._changed:
            self._error = error
        self.changed()

    def _subscribe(self) -> None:
        subscribe = self.node.create_subscription
        subscribe(ActionChunk, "action_chunk", self._on_chunk, qos.REPORT)
        subscribe(LanguageOutput, "language_output", lambda m: self._record("answers", m), qos.REPORT)
        subscribe(GroundTruth, "ground_truth", lambda m: self._record("truths", m), qos.REPORT)
        subscribe(LoopStats, "loop_stats", self._on_loop, qos.REPORT)
        subscribe(Motion, "motion", lambda m: self._record("motions", m), qos.ALL_LATCHED)
        subscribe(JointState, self.contract.joint_states.topic, self._on_joints, qos.SENSOR)
        subscribe(DiagnosticArray, "/diagnostics", self._on_diagnostics, qos.REPORT)
        for controller in self.contract.controllers:
            if controller.kind == "joint_trajectory":
                subscribe(JointTrajectory, controller.topic, self._on_trajectory, qos.REPORT)

    def _on_chunk(self, message: ActionChunk) -> None:
        try:
            chunk = convert.chunk_from_message(message, self.contract.action_names)
        except ValueError as refusal:
            self._record("refused", str(refusal))
        else:
            self._record("chunks", Received(self.now_ns(), chunk, message.inference_s))

    def _on_trajectory(self, message: JointTrajectory) -> None:
        now_ns = self.now_ns()
        try:
            self._record("sent", Sent(now_ns, convert.trajectory_from_message(message, now_ns)))
        except ValueError as refusal:
            self._record("refused", str(refusal))

    def _on_joints(self, message: JointState) -> None:
        if not set(self.contract.joint_names) <= set(message.name):
            return  # a driver of another part of the robot
        if len(message.position) != len(message.name):
            self._record(
                "refused", f"joint state has {len(message.name)} names and {len(message.position)} positions"
            )
            return
        order = [message.name.index(name) for name in self.contract.joint_names]
        positions = np.array(message.position)[order]
        unknown = np.full(len(message.name), np.nan)
        has_velocities = len(message.velocity) == len(message.name)
        velocities = (np.array(message.velocity) if has_velocities else unknown)[order]
        self._record("joints", Joints(convert.stamp_ns(message.header.stamp), positions, velocities))

    def _on_loop(self, message: LoopStats) -> None:
        with self._changed:
            self._loops[message.loop] = message
        self._record("reports", message)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        with self._changed:
            self._diagnostics |= of_robot(self.node.get_namespace(), message.status)
        self.changed()

    def _record(self, name: str, entry: object) -> None:
        with self._changed:
            self._records[name].append(entry)
        self.changed()

    def _snapshot(self, name: str) -> list:
        with self._changed:
            return list(self._records[name])

    def _last(self, name: str) -> Any:
        with self._changed:
            return self._records[name][-1] if self._records[name] else None
