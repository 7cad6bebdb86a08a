"""The faults of an episode: what goes wrong, one after another, for how long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from adversary_inputs import HOLD_SLACK_NS
from adversary_orders import ORDERS
from adversary_person import PERSON
from adversary_scene import MS, S
from adversary_tasks import TASKS, Tasks
from adversary_ways import POLL_HZ, WAYS

from vla_accel_ros.control.orders.moves import move
from vla_accel_ros.control.trajectory import TrajectoryPoint


class Episode(Tasks):
    """One robot and its misfortunes; see Scene."""

    @property
    def table(self) -> dict[str, Callable[[Any, str], None]]:
        return FAULTS

    def run(self) -> Episode:
        """Play it to its end and judge it."""
        self._every(S // self.joint_hz, self._joints)
        self._every(20 * MS, self._watch)
        self._every(S // self.chunk_hz, self._chunks)
        if self.robot.kind != "joint_trajectory":
            self._every(round(self.robot.period_s * S), self._tick)
        if self.robot.chunks_from != "topic":
            self._every(S // POLL_HZ, self._poll)
        self._meet_person()
        if self.faults:
            self._at(round(self.rng.expovariate(self.pace) * S), self._fault)
        try:
            while self._queue and self._queue[0][0] <= self.end_ns:
                self._next()
        finally:
            self.close()
        self._judge()
        return self

    def _fault(self) -> None:
        self._at(self.t_ns + round(self.rng.expovariate(self.pace) * S) + MS, self._fault)
        name = self.rng.choice(self.faults)
        self.happened[name] += 1
        self.log.append(f"{self.t_ns * 1e-9:.3f} {name}")
        self.table[name](self, name)

    def glitches(self, name: str) -> None:
        """Joints are reported elsewhere for a moment."""
        # Joints that lie for longer as the first thing that is known of them are believed.
        self._lasts(name, 0.002, self.rng.choice((0.02, 0.2, 1.0)) if self.began else 0.15)
        self.glitch = np.zeros_like(self.where)
        joint = self.rng.randrange(len(self.glitch))
        self.glitch[joint] = self.rng.choice((-1, 1)) * self.rng.choice((0.05, 0.4, 1.0))

    def stamps(self, name: str) -> None:
        """Joints are stamped wrongly."""
        self._lasts(name, 0.02, 1.0)
        self.stamp_off_ns = round(self.rng.choice((-2.0, -0.5, -0.05, 0.05, 0.3, 50.0)) * S)

    def shape(self, name: str) -> None:
        """Chunks of another horizon and step."""
        self._lasts(name, 0.1, 2.0)
        self.other = self.rng.choice((1, 2, 10, 50, 100)), self.rng.choice((0.002, 0.02, 0.1, 0.5))

    def duplicate(self, name: str) -> None:
        """A chunk comes again, maybe with another number or an older version."""
        if self.kept:
            chunk = self.rng.choice(self.kept)
            number = self.rng.choice((chunk.request_id, chunk.request_id + 1, 0))
            self._give(replace(chunk, request_id=number, kv_version=self.rng.choice((0, chunk.kv_version))))

    def future(self, name: str) -> None:
        """A chunk of a time to come, or of long ago."""
        off_ns = round(self.rng.choice((0.05, 0.2, 5.0, -1.0, -100.0)) * S)
        self._give(replace(self._made(), stamp_ns=self.now_ns() + off_ns))

    def clock(self, name: str) -> None:
        """ROS time is set."""
        by_s = self.rng.choice((-0.002, -0.015, -0.1, -50.0, 0.01, 0.3, 1.5, 100.0))
        by_ns = round(by_s * S)
        self.offset_ns += by_ns
        if -20 * MS <= by_ns <= S and self.robot.stamped:  # the controller lives by the same clock
            self.controller.shift(by_ns, self.t_ns)
        if self.robot.stamped:  # What was sent and has not come means another time on arrival.
            self.controller.spare(self.t_ns, max(self.t_ns + abs(by_ns) * (abs(by_ns) < S), self.arrivals_ns))
        self.newest_chunk_ns = min(self.newest_chunk_ns, self.now_ns())
        self.kept.clear()

    def hold(self, name: str) -> None:
        """~/hold."""
        self._input("order", lambda: self.node.order("hold"))
        self._resumed_later()

    def resume(self, name: str) -> None:
        """~/resume, which ends what a hold means."""

        def give() -> None:
            self._unhold()
            self._goes_on()
            self.node.order("resume")

        self._input("order", give)

    def _resumed_later(self) -> None:
        if self.rng.random() < 0.8:
            self._at(self.t_ns + round(self.rng.uniform(0.0, 2.0) * S), lambda: self.resume("resume"))

    def release(self, name: str) -> None:
        """~/release, and somebody else moves the joints."""

        def others() -> None:
            if self.node.motion.lending.is_lent and self.robot.takes_trajectories and self._rests():
                goal = self.robot.limits.lower + self.array.uniform(0.1, 0.9, len(self.where)) * (
                    self.robot.limits.upper - self.robot.limits.lower
                )
                start = np.clip(
                    self.controller.state(self.t_ns).position,
                    self.robot.limits.lower,
                    self.robot.limits.upper,
                )
                path = move(self.robot.joints, start, goal, self.robot.limits, 0.3, self.t_ns)
                self.controller.accept(path, self.t_ns, TrajectoryPoint(self.t_ns, self.where))
                self.others_until_ns = path.end_ns
                self.foreign.append((self.t_ns, path.end_ns))
                self._unhold()

        self._input("order", lambda: self.node.order("release"))
        self._at(self.t_ns + S, others)
        if self.rng.random() < 0.7:
            self._at(self.t_ns + round(self.rng.uniform(0.5, 6.0) * S), lambda: self.reclaim(name))

    def _rests(self) -> bool:
        """Whether others have ended their motion, however slow it was."""
        velocity = self.controller.state(self.t_ns).velocity
        return self.t_ns > self.others_until_ns and (velocity is None or not velocity.any())

    def reclaim(self, name: str) -> None:
        """~/reclaim, when the others are done."""

        def give() -> None:  # which a node that stalls hears later: others may have begun meanwhile
            if self.t_ns > self.others_until_ns + S // 5:
                self.node.order("reclaim")

        self._input("order", give)

    def home(self, name: str) -> None:
        """~/home."""
        self._input("order", lambda: self.node.order("home"))
        self._resumed_later()

    def restart(self, name: str) -> None:
        """The process ends and another begins, maybe with other parameters; holds survive."""
        if self.rng.random() < 0.5:
            self.parameters = self._parameters()
        go_on, restarts = self.rng.random() < 0.2, self.happened["restart"]

        def begin() -> None:
            if self.happened["restart"] != restarts:
                return  # this one was ended before it began: the next begins in its place
            self._unhold()
            self.began, self.restarted = False, True
            self.node = self._start(go_on)
            self._resumed_later()

        self.began, self.left_ns = False, self.ends_ns
        self.until["glitch"] = self.until["frozen"] = self.t_ns
        self._lasts("stall", 0.3, 3.0)
        self._waiting = {}
        self._at(self.until["stall"] + 1, begin)

    def stall(self, name: str) -> None:
        """The node is not scheduled for a while; then what waited comes at once."""
        if self.active("stall"):
            return
        self._lasts(name, 0.02, self.rng.choice((0.05, 0.3, 2.0)))
        if self.holding is not None and self.robot.kind != "joint_trajectory":
            # A stream whose process is not scheduled brakes the rest of the way after that.
            self.holding = max(self.holding[0], self.until[name] + HOLD_SLACK_NS), 0
        self._go_on_later()

    def scale(self, name: str) -> None:
        """A person pushes the slider of the controllers' speed; none may with another clock."""
        if self.robot.kind == "joint_trajectory" and self.robot.stamped:
            self._lasts(name, 0.1, 2.0)

    def reactivate(self, name: str) -> None:
        """Drives go off and on: the controller is deactivated meanwhile, then holds where the joints are."""
        if self.robot.takes_trajectories and not self.off:
            self._lasts(name, 0.4, 2.0)
            self.until["drive off"] = self.until[name]
            self._unhold()
            self._preempt(self.robot.joints)
            self.controller.hold(self.where.copy(), self.t_ns)
            self.activated = set(self.robot.joints)
            activated_ns = self.until[name] + self.offset_ns
            self.began_ns = dict.fromkeys(self.robot.groups or (self.robot.joints,), activated_ns)


FAULTS: dict[str, Callable[[Any, str], None]] = {
    "glitch": Episode.glitches,
    "dropout": lambda e, n: e._lasts(n, 0.05, 1.5),
    "frozen": lambda e, n: e._lasts(n, 0.05, 1.5 if e.began else 0.15),
    "drive off": lambda e, n: e._lasts(n, 0.05, 2.0),
    "joint stamps": Episode.stamps,
    "joints not finite": lambda e, n: e._lasts(n, 0.02, 0.5),
    "no chunks": lambda e, n: e._lasts(n, 0.1, 2.0),
    "reordered": lambda e, n: e._lasts(n, 0.1, 2.0),
    "other shape": Episode.shape,
    "slow model": lambda e, n: e._lasts(n, 0.2, 2.0),
    "jumps": lambda e, n: e._lasts(n, 0.1, 2.0),
    "wild": lambda e, n: e._lasts(n, 0.1, 1.0),
    "duplicate": Episode.duplicate,
    "future": Episode.future,
    "clock": Episode.clock,
    "hold": Episode.hold,
    "resume": Episode.resume,
    "release": Episode.release,
    "home": Episode.home,
    "restart": Episode.restart,
    "stall": Episode.stall,
    "held up": lambda e, n: e._lasts(n, 0.1, 2.0),
    "reactivate": Episode.reactivate,
    "scaled speed": Episode.scale,
    **WAYS,
    **ORDERS,
    **PERSON,
    **TASKS,
}
