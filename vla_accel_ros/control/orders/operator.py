"""What the services of the trajectory node do: hold, resume, home, release, reclaim, reset,
take_over and give_back.

Whatever begins with a robot at rest is an order, which goes on with every tick (order).
"""

from __future__ import annotations

from vla_accel_ros.control.following.watchdog import OPERATOR
from vla_accel_ros.control.force.taking_over import TakingOver
from vla_accel_ros.control.holds import RESET
from vla_accel_ros.control.orders.homing import Homing
from vla_accel_ros.control.orders.lending import Lending
from vla_accel_ros.control.orders.order import Order, Steps, come_to_rest, kept
from vla_accel_ros.control.orders.runs import Runs
from vla_accel_ros.control.robot import Robot
from vla_accel_ros.control.teleop.takeover import Takeover


class Operator:
    """The orders of a person, and of other nodes. force: None without sensors."""

    def __init__(
        self,
        robot: Robot,
        homing: Homing,
        lending: Lending,
        takeover: Takeover,
        runs: Runs,
        force: TakingOver | None,
    ) -> None:
        self._robot, self._homing, self._lending, self._force = robot, homing, lending, force
        self._takeover, self._runs = takeover, runs
        self._orders = list[Order]()

    def order(self, name: str) -> Order:
        """Begin what a service of this name asks for."""
        steps = {
            "hold": self._hold,
            "resume": self._resume,
            "home": self._homing.order,
            "release": self._release,
            "reclaim": self._lending.reclaim,
            "reset": self._reset,
            "take_over": self._takeover.take_over,
            "give_back": self._takeover.give_back,
        }
        order = Order(steps[name]())
        if order.answer is None:
            self._orders.append(order)
        return order

    def advance(self) -> None:
        """Let the orders go on that wait for nothing more."""
        for order in list(self._orders):
            order.step()
        self._orders = [order for order in self._orders if order.answer is None]

    def _hold(self) -> Steps:
        """Stop, and stay stopped until ~/resume."""
        self._robot.holds.hold()
        self._homing.cancel(OPERATOR)
        unwritten = yield from kept(self._robot)
        return True, f"stopping; ~/resume goes on{unwritten}"

    def _resume(self) -> Steps:
        """Take back every hold that a person may."""
        robot = self._robot
        robot.holds.resume_all()
        self._runs.resume()
        robot.follower.resume()
        if self._force is not None:
            self._force.forgive()
        yield from kept(robot)
        inputs = [str(stream) for stream in robot.follower.safety.watchdog.late(robot.clock.now_ns())]
        reasons = "; ".join(robot.holds.holds)
        words = f"going on when fresh: {'; '.join(inputs)}" if inputs else "going on"
        return True, f"still held: {reasons}" if reasons else words

    def _release(self) -> Steps:
        """Hand the controllers over to others."""
        self._homing.cancel("the controllers are released to others")
        return (yield from self._lending.release())

    def _reset(self) -> Steps:
        """Begin anew from where the joints were put, as a simulator does it."""
        if not self._robot.active:
            return True, "the trajectory node is not active"
        self._homing.cancel(RESET)
        if not (yield from come_to_rest(self._robot, RESET)):
            return True, "the trajectory node is no longer active"
        if self._force is not None:
            self._force.begin()
        self._robot.go_on(RESET)
        return True, "beginning anew from where the joints are"
