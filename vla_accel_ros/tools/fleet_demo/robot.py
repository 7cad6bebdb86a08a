"""One robot of the demo: its operator plays the tasks in a thread, and notes their outcome.

When a process that the robot needs has ended and is back, the episode continues in the same scene: a process
of its own simulates the arm, which stands where it came to rest. Waits of an episode are in simulated time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import count, islice
from typing import TypeVar

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.diagnostics import OK
from vla_accel_ros.tools.demo.play import Board, Played, Player
from vla_accel_ros.tools.fleet_demo import pace
from vla_accel_ros.tools.fleet_demo.fleet import SIM, Fleet
from vla_accel_ros.tools.fleet_demo.plan import TRIES, scenes
from vla_accel_ros.tools.running.driven import Driven, NodeDied

T = TypeVar("T")
START_S = 300.0
ACTING_S = 1.0
_MEMORY = 4000


class Robot(Driven):
    """One robot. name: its namespace; number: its index; played: its episodes in order; error: why it stopped
    playing."""

    def __init__(self, name: str, number: int, fleet: Fleet, contract: Contract) -> None:
        self.name, self.number, self._fleet = name, number, fleet
        self.board = Board()
        self.error: Exception | None = None
        self.operator = Operator(contract, name, memory=_MEMORY, use_sim_time=True)
        self._arm = max((controller.joints for controller in contract.controllers), key=len)
        self._thread: threading.Thread | None = None
        self._seen = 0

    @property
    def played(self) -> list[Played]:
        """The episodes played so far."""
        return self.board.played

    @property
    def over(self) -> bool:
        """Whether its thread has ended."""
        return self._thread is not None and not self._thread.is_alive()

    @property
    def acting(self) -> bool:
        """Whether it has been at a task for ACTING_S."""
        board = self.board
        acts = board.plan is not None and not board.outcome
        return acts and self.operator.now_ns() - board.begun_ns > ACTING_S * 1e9

    def begin(self, episodes: int, seed: int, further: Callable[[], bool]) -> None:
        """Play `episodes` tasks in a thread, and more while `further()` is true."""
        play = threading.Thread(target=self._run, args=(episodes, seed, further), name=self.name, daemon=True)
        self._thread = play
        play.start()

    def end(self) -> None:
        """Stop playing and close the operator."""
        self.operator.failed(RuntimeError("the demo ends"))
        if self._thread is not None:
            self._thread.join(5.0)
        self.operator.close()

    def done(self, turn: int) -> bool:
        """Whether it succeeded in its turn-th task."""
        return any(played.success for played in self.played if played.plan.index == turn)

    def moving_again_ns(self, since_ns: int) -> int | None:
        """Return when the arm got the first trajectory made from an observation after `since_ns`; None if it
        has not."""
        chunks = [chunk for chunk in self.operator.chunks if chunk.chunk.stamp_ns > since_ns]
        if not chunks:
            return None
        sent = [sent.received_ns for sent in self.operator.sent if sent.received_ns >= chunks[0].received_ns]
        return sent[0] if sent else None

    def lacking_s(self) -> float | None:
        """Return the larger of the newest chunk's age on arrival and the seconds since it ran out.

        None while no chunk is due: between tasks, and while a process is missing.
        """
        chunks, now_ns = self.operator.chunks, self.operator.now_ns()
        if not chunks or not self.acting or not self._fleet.whole(self.name):
            return None
        newest = chunks[-1]
        came_s = (newest.received_ns - newest.chunk.stamp_ns) * 1e-9
        lasts_s = newest.chunk.horizon * newest.chunk.step_dt_s
        return max(came_s, (now_ns - newest.chunk.stamp_ns) * 1e-9 - lasts_s)

    def wait(self, condition: Callable[[], T | None], timeout_s: float, what: str) -> T:
        """Wait as Operator.wait does, but in simulated time. Raises NodeDied if a process that the robot
        needs ends, TimeoutError after `timeout_s`."""
        until_ns = self.operator.now_ns() + round(timeout_s * 1e9)

        def in_time() -> T | None:
            if self.operator.now_ns() > until_ns:
                raise TimeoutError(f"{self.name}: no {what} within {timeout_s:g} simulated s")
            return condition()

        return super().wait(in_time, timeout_s / pace.LEAST, what)

    def revive(self, name: str) -> None:
        """Wait until the robot moves again after the process `name` ended; the fleet restarts it."""
        self.wait_until_driving(resume=name.endswith("trajectory"))

    def wait_until_driving(self, resume: bool = False) -> None:
        """Wait until chunks of new observations move the arm; `resume` first, since a restarted `trajectory`
        holds.

        Raises TimeoutError with what the robot's nodes report.
        """
        while True:
            try:
                self._wait_for_motion(resume)
                return
            except NodeDied as died:
                resume = resume or died.name.endswith("trajectory")
            except TimeoutError as error:
                reports = self.operator.diagnostics
                lines = [f"{item}: {line.message}" for item, line in reports.items() if line.level != OK]
                reason = "; ".join(lines) or "its nodes say nothing"
                raise TimeoutError(f"{self.name}: {error}; {reason}") from None

    def _wait_for_motion(self, resume: bool) -> None:
        since_ns = self.operator.now_ns()
        if resume:
            self.call(self.operator.resume)
        super().wait(partial(self.moving_again_ns, since_ns), START_S, "motion")

    def raise_if_dead(self) -> None:
        """See Driven."""
        if (ended := self._fleet.seen(self.name)) != self._seen:
            names = self._fleet.newest_deaths(self.name, ended - self._seen)
            self._seen = ended
            # Report the most serious death: without the arm the episode is over, and a restarted trajectory
            # node holds.
            sim = [SIM for name in names if name.endswith(SIM)]
            controllers = [name for name in names if name.endswith("trajectory")]
            raise NodeDied((sim or controllers or names)[0])

    def _run(self, episodes: int, seed: int, further: Callable[[], bool]) -> None:
        try:
            self._play(episodes, seed, further)
        except Exception as error:
            self.error = error

    def _play(self, episodes: int, seed: int, further: Callable[[], bool]) -> None:
        player = Player(self, self.board, self._arm)
        first = next(scenes(self.number, 0, seed))
        self.operator.instruct(first.task.instruction)
        self.wait_until_driving()
        for turn in count():
            if turn >= episodes and not further():
                return
            for plan in islice(scenes(self.number, turn, seed), TRIES if turn < episodes else 1):
                if player.play(plan).success:
                    break
