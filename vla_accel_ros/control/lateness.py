"""Why inputs of the motion are late: notes for the watchdog, which reports them with the ages."""

from __future__ import annotations

from vla_accel_ros.control.chunking.source import ChunkSource
from vla_accel_ros.control.following.reasons import unnumbered
from vla_accel_ros.control.following.watchdog import CHUNK, INFERENCE, JOINT_STATES, Watchdog
from vla_accel_ros.control.publishers import CHUNKS, Causes, Publishers
from vla_accel_ros.control.robot import Robot


class Lateness:
    """Attribute `refused`: why the last joint state was refused, empty if it was not."""

    def __init__(self, robot: Robot, causes: Causes, publishers: Publishers, source: ChunkSource) -> None:
        self._robot, self._causes, self._publishers, self._source = robot, causes, publishers, source
        self.refused = ""

    def note(self) -> None:
        """Note why the joints or chunks are late, and which of their topics were silent; every tick."""
        watchdog, states = self._watchdog, self._robot.contract.joint_states
        now_ns = self._robot.clock.now_ns()
        for stream in watchdog.late(now_ns):
            if stream.name == JOINT_STATES:
                self._publishers.silent(states.topic)
                problem = self._robot.joints.problem(now_ns, states.max_age_s)
                if note := self.refused or problem or self._causes.silence:
                    watchdog.note(JOINT_STATES, note)
            elif stream.name == CHUNK:
                self._publishers.silent(CHUNKS)
                if not stream.note and not self._source.listens and self._source.problem:
                    watchdog.note(CHUNK, self._source.problem)

    def look(self) -> None:
        """Look in the graph for the causes; a few times a second."""
        watchdog = self._watchdog
        lates, slow = watchdog.late(self._robot.clock.now_ns()), self._causes.slow()
        noted = {unnumbered(stream.note) for stream in lates}
        for stream in lates:
            if stream.name == JOINT_STATES:
                self._causes.look_for_joints()
            elif stream.name == INFERENCE or (
                stream.name == CHUNK and not stream.note and not watchdog.reported
            ):
                watchdog.note(stream.name, self._causes.chunks())
            elif stream.age_s is not None and not stream.note and slow and unnumbered(slow) not in noted:
                noted.add(unnumbered(slow))
                watchdog.note(stream.name, slow)

    @property
    def _watchdog(self) -> Watchdog:
        return self._robot.follower.safety.watchdog
