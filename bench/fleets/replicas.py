"""What replicas have in common that compute nothing of a robot: they need no description of it."""

from __future__ import annotations

from concurrent.futures import Future

from vla_accel_ros.fleet.protocol import RobotDescription


class Undescribed:
    """The part of a fleet.replicas.replica.Replica that is about robots."""

    def describe(self, robot: RobotDescription) -> Future[None]:
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def forget(self, robot: str) -> None:
        pass
