"""The process between chunks and the controller: what nodes/trajectory does, with slots in place of topics.

At the controller's rate, like that node's executor: take new joints, poll the slot of chunks
(sensing/chunk_slot.py), follow each new chunk, and make the command of a forward_command controller; at the
watchdog's rate: check ages.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from node_loops.running import Port
from node_loops.setting import Setting
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.buffer import TrajectoryBuffer
from vla_accel_ros.control.command_stream import CommandStream
from vla_accel_ros.control.following.follower import ChunkFollower
from vla_accel_ros.control.following.watchdog import Motion, Safety, Watchdog
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.interpreter import SWITCH_S, keep_loaded
from vla_accel_ros.sensing.chunk_slot import ChunkSlot
from vla_accel_ros.sensing.force_slot import ForceReader, ForceWriter
from vla_accel_ros.sensing.joints import JointHistory
from vla_accel_ros.types import Chunk

WATCH_HZ = 50.0


def run(port: Port, setting: Setting) -> dict[str, Any]:
    """Until the end. commands: int64 [N, 2], when each was handed over, and the stamp of the frame whose
    chunk was followed since the last one, else 0."""
    sys.setswitchinterval(SWITCH_S)
    loop = _Trajectory(setting)
    joints, commands = ForceReader(setting.joints), ForceWriter(setting.commands, len(loop.names))
    every = max(1, round(setting.commands_hz / WATCH_HZ))
    keep_loaded()
    port.ready()
    for number in port.ticks(setting.commands_hz):
        for stamp_ns, position in joints.read():
            loop.measured(position, stamp_ns)
        if number % every == 0:
            loop.watch()
        loop.poll()
        command = loop.command()
        if command is not None:
            commands.write(command, time.time_ns())
    commands.close()
    return loop.log()


class _Trajectory:
    """One controller of all joints."""

    def __init__(self, setting: Setting) -> None:
        contract = Contract.load(setting.contract)
        limits, self.names = JointLimits.of(contract.action_joints), contract.action_names
        max_age_s = contract.chunk.max_age_s
        buffer = TrajectoryBuffer(self.names, limits, lead_s=setting.lead_s, max_age_s=max_age_s)
        self._follower = ChunkFollower(buffer, Safety(Watchdog(contract.max_ages_s)), max_age_s)
        self._stream = CommandStream(self.names, limits, 1.0 / setting.commands_hz)
        self._slot = ChunkSlot(setting.chunks, self.names, setting.commands_hz)
        self._joints, self._frame_ns = JointHistory(self.names), 0
        self._commands: list[tuple[int, int]] = []
        self._follow_s: list[float] = []
        self._stops: list[tuple[int, str]] = []
        self._refused = ""

    def measured(self, position: Sequence[float], stamp_ns: int) -> None:
        """A joint state."""
        if self._joints.add(self.names, position, stamp_ns):
            self._follower.measured(self._joints.newest(), stamp_ns, time.time_ns())

    def watch(self) -> None:
        """Check the ages."""
        change, path = self._follower.step(time.time_ns())
        self._send(path)
        if change is not None and change.after is not Motion.RUNNING:
            self._stops.append((time.time_ns(), "; ".join(change.reasons)))

    def poll(self) -> None:
        """Follow what is new in the slot."""
        self._slot.poll(self._take)

    def command(self) -> list[float] | None:
        """What to publish now, positions [D]; None before the first chunk."""
        state = self._stream.tick(time.time_ns(), time.monotonic_ns())
        if state is None:
            return None
        self._commands.append((time.time_ns(), self._frame_ns))
        self._frame_ns = 0
        return list(map(float, state.position))

    def log(self) -> dict[str, Any]:
        """What came of it."""
        return {
            "commands": np.array(self._commands, np.int64).reshape(-1, 2),
            "follow_s": np.array(self._follow_s),
            "stops": self._stops,
            "overtaken": self._slot.counts["overtaken"],
            "buffer": {**self._follower.buffer.counts, **self._follower.counts},
            "why_refused": self._refused,
        }

    def _take(self, received: Callable[[], Chunk]) -> bool:
        began_s = time.monotonic()
        try:
            chunk = received()
            path = self._follower.follow(chunk, time.time_ns(), time.time_ns)
        except ValueError as refusal:
            self._refused = str(refusal)
            return False
        if path is not None:
            self._send(path)
            self._frame_ns = chunk.stamp_ns
        self._follow_s.append(time.monotonic() - began_s)
        return True

    def _send(self, path: Trajectory | None) -> None:
        if path is not None:
            self._stream.follow(path, time.time_ns())
