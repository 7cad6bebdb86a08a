"""The common part of replicas that compute nothing for a robot, and therefore need no description of it."""

from __future__ import annotations

from concurrent.futures import Future

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.session import Session
from vla_accel_ros.fleet.protocol import EncodedObservation, RobotDescription, Round


class Undescribed:
    """The part of a fleet.replicas.replica.Replica that is about robots, and about questions: it answers
    none."""

    answers = 0
    config: EngineConfig | None = None

    def describe(self, robot: RobotDescription) -> Future[Session | None]:
        future: Future[Session | None] = Future()
        future.set_result(None)
        return future

    def ask(self, round: Round, observation: EncodedObservation) -> Future[str]:
        future: Future[str] = Future()
        future.set_exception(ValueError("it answers nothing"))
        return future

    def forget(self, robot: str) -> None:
        pass
