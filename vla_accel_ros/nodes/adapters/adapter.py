"""The interface between the motion and one controller.

An adapter takes trajectories that are absolute and within limits, each in place of the one before, and makes
its controller follow them. Everything else is for controllers that need more than messages now and then:
those that are told where to be at a rate, and those that can be paused. An adapter decides nothing about
motion.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vla_accel_ros.contract.contract import Controller
from vla_accel_ros.control.chunking.twist import TwistBuffer
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.control.trajectory import Trajectory
from vla_accel_ros.nodes.lifecycle import ManagedNode

# What most controllers have no need of does nothing, on purpose.
# ruff: noqa: B027


@dataclass(frozen=True)
class Setup:
    """What an adapter is made of.

    node: publishes its commands (`node.output`) and has the parameters. limits: of the controller's joints,
    in its order. twist: what the hand is moved by, None where no servo_twist moves it.
    """

    node: ManagedNode
    controller: Controller
    limits: JointLimits
    twist: TwistBuffer | None = None


class Adapter(ABC):
    """What is sent to one controller. All calls come from the node's thread."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller

    @classmethod
    @abstractmethod
    def make(cls, setup: Setup) -> Adapter:
        """The adapter of one controller, when the node configures. Raises ValueError for what is missing."""

    @abstractmethod
    def send(self, trajectory: Trajectory, decided_ns: int) -> None:
        """Follow this one from now on; it may have other joints too. decided_ns: the present when it was
        decided, from when on this process may not have been scheduled."""

    def measured(self, positions: Mapping[str, float]) -> None:
        """Measured joint positions by name, as they come."""

    def reference(self, now_ns: int) -> Mapping[str, float]:
        """Where its controller says that it is commanded to be, by joint name; empty where it has not said so
        lately."""
        return {}

    def commanded(self, t_ns: int) -> Mapping[str, float]:
        """Where its controller is commanded to be at a time by what it was sent until then, by joint name;
        empty where that is what was decided."""
        return {}

    def begin(self) -> None:
        """Send nothing until the next trajectory: the robot is elsewhere, or driven by others."""

    def stop(self, braking: Trajectory | None, now_ns: int) -> Trajectory | None:
        """Come to rest: the times of the trajectory mean nothing any more, because the clock has jumped.

        braking: how, in the new time, for a controller that executes by itself; None when it is at rest.
        Returns what its controller executes instead, with the latest times at which it may; None where that
        is as given.
        """
        return None

    def rests_ns(self) -> int:
        """When its controller comes to rest by what was sent later than it was decided; 0 where the last was
        sent in time."""
        return 0

    def tick(self, now_ns: int) -> None:
        """Send what is due now."""

    def open(self) -> list[str]:
        """Make the controller listen, at activation; what could not be done, a sentence each."""
        return []

    def rest(self) -> None:
        """The robot has come to rest, and is held."""

    def at_rest(self, now_ns: int) -> bool:
        """Whether there is nothing to be sent at a rate, or it has come to its end."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Leave the controller alone, at deactivation: what was sent has arrived when this returns."""

    def lead_s(self, now_ns: int) -> float:
        """How long a trajectory takes to the controller, as far as is known; asked at the watchdog's rate."""
        return 0.0

    @property
    def waits(self) -> bool:
        """Whether its controller is about to say where it is; no motion begins before."""
        return False

    @property
    def hindrance(self) -> str:
        """Why nothing that is sent would be executed as it is meant, a sentence that stays the same; else
        empty. The robot is held meanwhile."""
        return ""

    @property
    def trouble(self) -> str:
        """A sentence when the controller does not get what it is sent in time, else empty."""
        return ""

    def values(self) -> dict[str, object]:
        """Numbers for diagnostics."""
        return {}


def steady_ns(node: ManagedNode) -> int | None:
    """The present by a clock that nobody sets; None where time is simulated, and motion goes by that."""
    return None if node.get_clock().ros_time_is_active else time.monotonic_ns()


def by_name(names: tuple[str, ...], positions: np.ndarray | None) -> dict[str, float]:
    """float64 [D] positions by name; nothing where they are not known."""
    return {} if positions is None else dict(zip(names, positions.tolist()))
