"""What the node gets in an episode: measured joints, chunks, and its timers."""

from __future__ import annotations

import numpy as np
from adversary_judge import Judged
from adversary_scene import EPOCH, MS, SCALE, S

from vla_accel_ros.control.following.joint_faults import LASTING_S, usual
from vla_accel_ros.control.following.watchdog import OPERATOR, RELEASED
from vla_accel_ros.control.outputs.on_arrival import SPEED
from vla_accel_ros.types import Chunk

HOLD_SLACK_NS = S // 2
FOLLOWING_NS = round(2e9 * LASTING_S)
"""How long after joints could not follow, or were told wrongly, a hold for that is right."""
NOT_FOLLOWING = "does not follow"


class Given(Judged):
    """With what the node gets. inactive: whether the node has been deactivated."""

    inactive = False

    def _command(self) -> np.ndarray:
        if self.robot.takes_trajectories:
            return self.controller.state(self.t_ns).position
        return self.ticks[-1][1] if self.robot.kind == "forward_command" and self.ticks else self.where

    def _joints(self) -> None:
        dt_s = (self.t_ns - self._felt_ns) * 1e-9
        self._felt_ns = self.t_ns
        if self.active("scaled speed"):
            self._slow_down(round(dt_s * S))
        if self.robot.kind == "servo_joint":
            if self.ticks and not self.active("drive off"):
                velocity = self.ticks[-1][1] if self.t_ns - self.ticks[-1][0] < 100 * MS else 0.0
                self.where = self.where + velocity * dt_s
        elif not self.active("drive off"):
            distance = self._command() + self.sag - self.where
            reach = 1.5 * self.robot.limits.velocity * dt_s
            self.where = self.where + np.clip(distance * min(1.0, dt_s / 0.03), -reach, reach)
        elif self.t_ns < self.others_until_ns and np.abs(self._command() - self.where).max() > 0.1:
            self.controller.hold(self.where.copy(), self.t_ns)  # others judge the motion that they command
            self.others_until_ns = self.t_ns
        self.where = np.clip(self.where, self.robot.limits.lower, self.robot.limits.upper)
        if self.active("dropout"):
            return
        if not self.active("frozen") or self.happened["joints"] == 0:
            self.reported = self.where.copy()
        position = self.reported + (self.glitch if self.active("glitch") else 0.0)
        if self.active("joints not finite"):
            position[self.rng.randrange(len(position))] = self.rng.choice((np.nan, np.inf))
        stamp_ns = self.now_ns() + (self.stamp_off_ns if self.active("joint stamps") else 0)
        distance = np.abs(position - self._command())
        speed = self.robot.limits.velocity * (1.0 if self.robot.stamped else SPEED)
        lag = 0.0 if self.robot.stamped else speed * self.parameters.lead_s  # which the node cannot know
        near = bool((distance < 0.7 * usual(speed) - lag).all())
        if any(self.active(name) for name in ("drive off", "frozen", "joint stamps")):
            self._told_wrong_ns = self.t_ns
        follows = near and not self.activated and self.t_ns > self._told_wrong_ns + FOLLOWING_NS
        slow = self.t_ns - max(self.slowed_ns.values(), default=-S) < S // 2
        follows = follows and self.robot.kind != "servo_joint" and not slow  # which tells of no position
        self.happened["joints"] += 1
        self._input("joints", lambda: self.node_joints(position, stamp_ns, follows))

    def node_joints(self, position: np.ndarray, stamp_ns: int, follows: bool) -> None:
        """Measured joints; follows: they are where the controllers are commanded to be."""
        earlier, node = set(self.node.holds), self.node
        node.joints(*self._measured(position), stamp_ns)
        if follows and any(NOT_FOLLOWING in reason for reason in set(node.holds) - earlier):
            self._break("held because joints do not follow, and they do")

    def _measured(self, position: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
        """Names and positions of a joint state."""
        return self.robot.joints, position

    def _slow_down(self, passed_ns: int) -> None:
        """The controllers execute at SCALE of their speed: it is theirs alone that they are slow."""
        moves = self.controller.state(self.t_ns).velocity
        if moves is None or not moves.any():
            return
        passed_ns = min(passed_ns, self.t_ns - self.controller.starts[-1])  # of what it executes now
        self.controller.shift(-round((1.0 - SCALE) * passed_ns), self.t_ns)
        self.slowed_ns = dict.fromkeys(self.robot.groups or (self.robot.joints,), self.t_ns)
        self._unhold()

    def _watch(self) -> None:
        self._input("watch", self.node_watch)

    def node_watch(self) -> None:
        """The watchdog's timer, and what the holds mean from then on."""
        silent = self.node.motion.lending.is_lent
        self.node.watch()
        lent = self.node.motion.lending.is_lent
        if lent and not silent:
            self._end_stream()
        if OPERATOR in self.node.holds and RELEASED not in self.node.holds:
            self._must_rest()

    def _must_rest(self) -> None:
        """Nothing moves from some time on."""
        if self.holding is None:
            # A join that has begun ends where it goes to: a stop on an unknown way could be anywhere.
            joined_ns = self.node.robot.follower.joining.until_ns - self.offset_ns
            from_ns = max(self.t_ns + round(self._longest_s * S), joined_ns, self.rests_ns, self.left_ns)
            from_ns += max(self.arrivals_ns - self.t_ns, 0)
            # A stream that was behind its path still catches up with it while it stops.
            slack_ns = HOLD_SLACK_NS * (1 if self.robot.kind == "joint_trajectory" else 2)
            self.holding = (from_ns + slack_ns, 0)

    def _end_stream(self) -> None:
        """The last command is all that there is; what comes next begins where the joints are."""
        self.restarted = True
        if self.ticks:
            last = self.ticks[-1][1] if self.robot.kind == "forward_command" else np.zeros(self._rates)
            self.ticks.append((self.t_ns + round(self.robot.period_s * S), last))

    def _tick(self) -> None:
        self._input("tick", lambda: self.node.tick())

    def _check_silence(self) -> None:
        """Nothing is sent while others may command the controllers."""
        if self.node.motion.lending.is_lent:
            self._break("sent something while released")
        if self.inactive:
            self._break("sent something while inactive")

    def _commanded(self, command: np.ndarray) -> None:
        self._check_silence()
        if self.restarted and self.robot.kind == "forward_command":
            # It knows the joints only, which drives that were off may have left elsewhere: from there on it
            # is judged anew.
            self.anew.append(len(self.ticks))
            self.ticks.append((self.t_ns - round(self.robot.period_s * S), self.where.copy()))
        self.restarted = False
        self.ticks.append((self.t_ns, command.copy()))

    def _chunks(self) -> None:
        if self.active("no chunks"):
            return
        chunk = self._made()
        self.kept = [*self.kept[-5:], chunk]
        if self.active("reordered") and len(self.kept) > 1:
            chunk = self.kept[self.rng.randrange(len(self.kept))]
        self._give(chunk)

    def _made(self) -> Chunk:
        rng, limits = self.rng, self.robot.limits
        horizon, step_s = self.horizon, self.step_s
        if self.active("other shape"):
            horizon, step_s = self.other
        age_s = self.age_s * rng.uniform(0.8, 1.3) + (
            rng.uniform(0.0, 1.0) if self.active("slow model") else 0.0
        )
        stamp_ns = self.now_ns() - round(age_s * S)
        t = ((stamp_ns - EPOCH) * 1e-9 + np.arange(1, horizon + 1) * step_s)[:, None]
        half = np.ones(self._width)
        middle = np.zeros(self._width)
        d = len(self.robot.joints)
        half[-d:], middle[-d:] = (limits.upper - limits.lower) / 2, (limits.upper + limits.lower) / 2
        actions = middle + self.amount * half * np.sin(t * self.speed + self.phase)
        actions += self.noise * self.array.normal(size=self._width)
        if self.active("jumps"):
            actions += half * self.array.uniform(-1.0, 1.0, self._width)
        if self.active("wild"):
            actions = self._wild(actions)
        self.number += 1
        return Chunk(
            actions.astype(np.float32),
            stamp_ns,
            step_s,
            self.number,
            self.number,
            np.zeros(horizon, np.float32),
        )

    def _wild(self, actions: np.ndarray) -> np.ndarray:
        rng = self.rng
        how = rng.choice(("nan", "inf", "far", "huge", "zigzag", "one"))
        row, column = rng.randrange(len(actions)), rng.randrange(actions.shape[1])
        if how in ("nan", "inf"):
            actions[row, column] = np.nan if how == "nan" else np.inf
        elif how == "far":
            actions *= rng.choice((3.0, 10.0))
        elif how == "huge":
            actions[row:, column] = rng.choice((1e5, -1e12, 3e38))
        elif how == "zigzag":
            actions[::2] += rng.uniform(0.1, 3.0)
        else:
            actions[row] += rng.uniform(-2.0, 2.0)
        return actions

    def _give(self, chunk: Chunk) -> None:
        def give() -> None:
            if np.isfinite(chunk.actions).all():
                self.newest_chunk_ns = max(self.newest_chunk_ns, min(chunk.stamp_ns, self.now_ns() + S // 10))
            self.node.chunk(chunk)

        self._input("chunk", give)
