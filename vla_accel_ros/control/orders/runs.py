"""Goals of the action run_policy: the policy acts on an instruction until that is done, stopped or hopeless.

A goal begins only with a robot that nothing holds, and there is one at a time: a newer goal, and an
instruction from elsewhere, end it and go on at once. Any other end stops the robot smoothly, withdraws the
instruction, and is told when the robot is at rest. It then stands until a newer goal, an instruction or
~/resume. Short pauses, such as a camera's, do not end a goal; `run_stall_s` without motion does, with the
reasons for it.
"""

from __future__ import annotations

from typing import NamedTuple

from vla_accel_ros.control.following.watchdog import MotionState
from vla_accel_ros.control.robot import Robot

ENDED = "the goal of run_policy has ended; a goal, an instruction or ~/resume goes on"
COMPLETED, TIMEOUT, STOPPED, CANCELLED, NODE_DEACTIVATED, ERROR = (
    "completed",
    "timeout",
    "stopped",
    "cancelled",
    "node_deactivated",
    "error",
)
"""Why a goal ended, in rosetta's words."""
LONGEST_PROMPT = 2000
DAY_S = 86_400.0


class Ending(NamedTuple):
    """How a goal ended: one of the words above, and a sentence."""

    reason: str
    message: str


class Run:
    """One goal. timeout_s: after which it ends; 0: never. began_ns: by the steady clock. sent: trajectories
    sent before it. ending: None until it has ended."""

    def __init__(self, prompt: str, timeout_s: float, began_ns: int, sent: int) -> None:
        self.prompt, self.timeout_s, self.began_ns, self.sent = prompt, timeout_s, began_ns, sent
        self.ending: Ending | None = None
        self.verdict: Ending | None = None  # while the robot stops
        self.moved_ns = began_ns  # when chunks moved the robot last


class Runs:
    """The goals of a robot. timeout_s: of goals that have none. stall_s: see the module.

    Attribute `words`: instructions that are not published yet; an empty one withdraws the last.
    """

    def __init__(self, robot: Robot, timeout_s: float, stall_s: float) -> None:
        self._robot, self._timeout_s, self._stall_s = robot, timeout_s, stall_s
        self.words = list[str]()
        self.run: Run | None = None

    def begin(self, prompt: str, timeout_s: float = 0.0, refusal: str = "") -> Run:
        """Begin a goal. It has ended already if it cannot begin. refusal: why not, if that is known."""
        robot = self._robot
        run = Run(prompt, timeout_s or self._timeout_s, robot.clock.monotonic_ns(), robot.outputs.sent)
        if refusal := refusal or self._refusal(prompt, timeout_s):
            run.ending = Ending(ERROR, refusal)
            return run
        self._leave(Ending(CANCELLED, f"a newer goal took its place: {prompt!r}"))
        self.run = run
        self._robot.instruct(prompt)
        self.words.append(prompt)
        return run

    def cancel(self, run: Run) -> None:
        """A client cancels this goal."""
        self._stop(run, Ending(CANCELLED, "cancelled by a client"))

    def complete(self, run: Run, message: str) -> None:
        """The task of this goal is done."""
        self._stop(run, Ending(COMPLETED, message))

    def hear(self, text: str) -> None:
        """Someone else gave an instruction."""
        ending = Ending(STOPPED, f"another instruction was given: {text!r}")
        self._robot.instruct(text)
        if text.strip():
            self._leave(ending)
        elif self.run is not None:
            self._stop(self.run, ending)

    def resume(self) -> None:
        """A person resumes."""
        if self.run is None:
            self._robot.holds.resume(ENDED)

    def advance(self) -> None:
        """Look at the goal; at the watchdog's rate, and when the node is deactivated."""
        run, robot = self.run, self._robot
        if run is None:
            return
        if run.verdict is None and (verdict := self._verdict(run)) is not None:
            self._stop(run, verdict)
        if run.verdict is not None and (not robot.active or robot.at_rest()):
            self._end(run, run.verdict)

    def published(self, run: Run) -> int:
        """Trajectories that were sent since the goal began."""
        return self._robot.outputs.sent - run.sent

    def queued(self) -> int:
        """Actions of the newest chunk that are still ahead."""
        buffer, now_ns = self._robot.follower.buffer, self._robot.clock.now_ns()
        end_ns = now_ns if buffer.plan is None else buffer.plan.end_ns
        ahead_s = (end_ns - now_ns) * 1e-9
        if buffer.tempo is not None:
            ahead_s = buffer.tempo.way_s(end_ns) - buffer.tempo.way_s(now_ns)
        return max(0, int(ahead_s / self._robot.contract.chunk.step_dt_s))

    def _refusal(self, prompt: str, timeout_s: float) -> str:
        if not prompt.strip():
            return "prompt is empty: say what to do"
        if len(prompt) > LONGEST_PROMPT:
            return f"prompt has {len(prompt)} letters: give at most {LONGEST_PROMPT}"
        if not 0.0 <= timeout_s <= DAY_S:
            return f"timeout_s is {timeout_s:g}: give a number from 0 to {DAY_S:g}"
        if not self._robot.active:
            return "the trajectory node is not active: activate it"
        return self._stands()

    def _stands(self) -> str:
        """Why something other than this holds the robot; empty if nothing does."""
        reasons = [reason for reason in self._robot.holds.lasting if reason != ENDED]
        return f"the robot is held: {'; '.join(reasons)}" if reasons else ""

    def _verdict(self, run: Run) -> Ending | None:
        """Why a goal cannot go on; None while it can."""
        robot, now_ns = self._robot, self._robot.clock.monotonic_ns()
        safety = robot.follower.safety
        if not robot.active:
            return Ending(NODE_DEACTIVATED, "the trajectory node was deactivated")
        if stands := self._stands():
            return Ending(ERROR, stands)
        if safety.state is MotionState.RUNNING:
            run.moved_ns = now_ns
        elif now_ns - run.moved_ns > self._stall_s * 1e9:
            return Ending(ERROR, f"no motion for {self._stall_s:g} s: {'; '.join(safety.reasons)}")
        if 0.0 < run.timeout_s * 1e9 < now_ns - run.began_ns:
            return Ending(TIMEOUT, f"not done within {run.timeout_s:g} s")
        return None

    def _stop(self, run: Run, verdict: Ending) -> None:
        """Stop the robot, and end the goal when it is at rest."""
        if run is self.run and run.verdict is None:
            run.verdict = verdict
            self.words.append("")
            self._robot.holds.hold(ENDED, passing=True)

    def _leave(self, ending: Ending) -> None:
        """End the goal, if there is one, and let the robot go on."""
        if self.run is not None:
            self._end(self.run, self.run.verdict or ending)
        self._robot.holds.resume(ENDED)

    def _end(self, run: Run, ending: Ending) -> None:
        run.ending, self.run = ending, None
