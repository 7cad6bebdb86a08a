"""What operators and lifecycle managers ask of the node in an episode: it is deactivated and activated again,
the joints are put elsewhere as a simulator does, controllers are switched, sensors of force are tared."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from adversary_scene import Robot, S
from adversary_ways import Ways
from world import Parameters, Process

from vla_accel_ros.control.following.watchdog import OPERATOR, RELEASED


class Switching:
    """A controller manager that takes its time, refuses, or does not answer."""

    controllers = ("ours",)

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def switch(self, activate: Sequence[str], deactivate: Sequence[str], sure: bool = True) -> str:
        """See control.lending.Manager."""
        orders, rng = self._orders, self._orders.apart
        orders.block(round(rng.uniform(0.0, 1.0) * S))
        on = "ours" in activate
        if (sure and on != orders.off) or rng.random() < 0.1:
            return "refused"
        if rng.random() < 0.2:
            if rng.random() < 0.5:
                orders.later(round(rng.uniform(0.0, 2.0) * S), lambda: orders.switch(on))
            raise TimeoutError("no answer")
        orders.switch(on)
        return ""


class Orders(Ways):
    """With them. off: whether our controllers are switched off. apart: decides here, so that other faults
    come as they would without these."""

    off = False

    def _reached(self, robot: Robot) -> Robot:
        self.apart = random.Random(f"orders {self.seed}")
        return super()._reached(robot)

    def _parameters(self) -> Parameters:
        parameters = super()._parameters()
        if self.robot.kind != "joint_trajectory" or not set(self.faults) & set(ORDERS):
            return parameters
        return replace(
            parameters,
            options=replace(
                parameters.options, release_by="switch" if self.apart.random() < 0.4 else "pause"
            ),
        )

    def _start(self, go_on: bool = True) -> Process:
        self.until["deaf"], self.inactive = self.t_ns - 1, False
        process = super()._start(go_on)
        if set(self.faults) & set(ORDERS):
            process.manager.switch = Switching(self).switch  # type: ignore[method-assign]
        return process

    def block(self, for_ns: int) -> None:
        """The process does nothing else for some time: what comes waits."""
        until_ns, restarts = self.t_ns + for_ns, self.happened["restart"]
        if not self.active("stall"):
            self.until["stall"] = until_ns
            self._go_on_later()
        self.until["stall"] = until_ns
        self._pass(until_ns, restarts)

    def switch(self, on: bool) -> None:
        """Our controllers are switched on or off."""
        self._unhold()
        self._preempt(self.robot.joints)
        self.off = not on
        self.until["reactivate"] = self.t_ns - 1 if on else 1 << 62
        if on:
            self._put(self.where)

    def _put(self, where: np.ndarray) -> None:
        """The joints are here, and controllers hold them."""
        self.where = where
        self.controller.hold(where.copy(), self.t_ns)
        self.activated = set(self.robot.joints)
        self.began_ns = dict.fromkeys(self.robot.groups or (self.robot.joints,), self.now_ns())

    def deactivate(self, name: str) -> None:
        """A lifecycle manager deactivates the node, and activates it later."""

        def rest() -> None:
            if self.node.active:
                for pause_s in self.node.deactivate():
                    self.block(round(pause_s * S))
                self.began, self.inactive = False, True
                self._end_stream()
                self._hear()
                if RELEASED not in self.node.holds:
                    self._must_rest()

        self._input("lifecycle", rest)
        self._at(
            self.t_ns + round(self.apart.uniform(0.0, 2.0) * S), lambda: self._input("lifecycle", self._act)
        )

    def _act(self) -> None:
        if not self.node.active:
            self.restarted, self.left_ns, self.inactive = True, self.ends_ns, False
            if OPERATOR not in self.node.holds:
                self._unhold()
            self.node.activate()

    def reset(self, name: str) -> None:
        """The joints are put elsewhere, and controllers hear nothing before that is answered."""
        if not self.robot.takes_trajectories or self.off:
            return
        limits = self.robot.limits
        self._unhold()
        self._preempt(self.robot.joints)
        self._put(
            limits.lower + self.array.uniform(0.1, 0.9, len(self.where)) * (limits.upper - limits.lower)
        )
        self.others_until_ns = min(self.others_until_ns, self.t_ns)
        # What is measured next is the first thing that is known of where they were put.
        self.until["glitch"], self.until["frozen"], self.began = self.t_ns, self.t_ns, False
        self.until["deaf"] = 1 << 62
        self._input("reset", lambda: self.node.order("reset"))

    def node_watch(self) -> None:
        super().node_watch()
        self._hear()

    def _hear(self) -> None:
        if self.active("deaf") and "reset" in self.node.answers:
            del self.node.answers["reset"]
            self.until["deaf"] = self._told_wrong_ns = self.t_ns - 1

    def tare(self, name: str) -> None:
        """~/tare; what it answers is its own affair."""
        force = self.node.motion.force
        if force is not None:
            self._input("tare", force.tare)


ORDERS: dict[str, Callable[[Any, str], None]] = {
    "deactivate": Orders.deactivate,
    "reset": Orders.reset,
    "tare": Orders.tare,
}
