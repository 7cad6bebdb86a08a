"""Any order of requests and events: nothing is lost, and nothing is held in the end."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from scheduled import System

from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.request import ACT, ASK, DENOISE, PREFILL, Act, MicroBatch, Request, Waits
from vla_accel_ros.engine.rules.chunks import StaggeredChunks
from vla_accel_ros.engine.rules.rule import Rule
from vla_accel_ros.engine.rules.tokens import TokenFrames


class SchedulerMachine(RuleBasedStateMachine):
    """Any sequence of submit, step, cancel, forget, skip and errors leaves nothing that is finished in the
    queue, and holds nothing for it."""

    def __init__(self) -> None:
        super().__init__()
        self.system = System(self.policy(), steps=3, first=self.first)
        self.requests: list[Request] = []
        self.told: dict[Request, list[bool]] = {}
        self.taken: set[Request] = set()

    first = DENOISE

    def policy(self) -> Rule:
        return StaggeredChunks(2)

    def keep(self, request: Request) -> None:
        self.requests.append(request)

    def progress(self, request: Request) -> None:
        self.told.setdefault(request, []).append(request.finished)

    @rule(robot=st.sampled_from("ab"), words=st.sampled_from(("reach", "put")))
    def see(self, robot: str, words: str) -> None:
        self.keep(self.system.frame(robot, words, on_progress=self.progress))

    @rule(robot=st.sampled_from("ab"), stream=st.booleans(), fails=st.booleans())
    def act(self, robot: str, stream: bool, fails: bool) -> None:
        request = Request(
            Act(), robot, on_progress=self.progress, waits=Waits.NEWS if stream else Waits.NOTHING
        )
        if fails:
            self.system.runner.fails.add(request)
        self.keep(self.system.scheduler.submit(request))

    @rule(robot=st.sampled_from("ab"), waits=st.booleans())
    def ask(self, robot: str, waits: bool) -> None:
        self.keep(
            self.system.submit(
                ASK, robot=robot, waits=Waits.ROOM if waits else Waits.NOTHING, on_progress=self.progress
            )
        )

    @rule(times=st.integers(1, 4), later_s=st.sampled_from((0.0, 0.3)))
    def step(self, times: int, later_s: float) -> None:
        self.system.clock.now_s += later_s
        for _ in range(times):
            self.system.scheduler.step()

    @rule()
    def step_that_fails(self) -> None:
        def fails(batch: MicroBatch) -> None:
            raise RuntimeError("out of memory")

        self.system.runner.during = fails
        self.system.scheduler.step()
        self.system.runner.during = lambda batch: None

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(range(len(self.requests))), max_size=3))
        self.system.scheduler.cancel(*(self.requests[number] for number in some))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel_while_a_micro_batch_runs(self, data: st.DataObject) -> None:
        request = self.requests[data.draw(st.sampled_from(range(len(self.requests))))]
        self.system.runner.during = lambda batch: self.system.scheduler.cancel(request)
        self.system.scheduler.step()
        self.system.runner.during = lambda batch: None

    @rule(robot=st.sampled_from((None, "a", "b")))
    def forget(self, robot: str | None) -> None:
        self.system.scheduler.forget(robot)
        assert not any(
            r.want == ACT and r.begun and robot in (None, r.robot) for r in self.system.scheduler.requests
        )

    @rule(robot=st.sampled_from("ab"))
    def skip(self, robot: str) -> None:
        self.system.scheduler.skip(robot)

    @precondition(lambda self: any(isinstance(request.result, Prefix) for request in self.requests))
    @rule()
    def release_what_came(self) -> None:
        for request in self.requests:
            if isinstance(request.result, Prefix):
                request.result.release()
                self.taken.add(request)

    @invariant()
    def what_is_finished_is_not_queued(self) -> None:
        queue = self.system.scheduler.requests
        assert len(set(queue)) == len(queue)
        assert set(queue) == {request for request in self.requests if not request.finished}
        assert not any(request.finished or request.cancelled for request in queue)

    @invariant()
    def nothing_is_held_for_what_is_finished(self) -> None:
        runner = self.system.runner
        assert runner.open == {request for request in self.system.scheduler.requests if request.begun}
        results = [r for r in self.requests if isinstance(r.result, Prefix) and r not in self.taken]
        frames = {request.prefix.slot for request in self.system.scheduler.requests if request.begun}
        frames |= {request.result.slot for request in results}
        newest = [runner.prefixes._newest[robot].slot for robot in "ab" if robot in runner.prefixes._newest]
        assert runner.slots_held == len(frames | set(newest))

    @invariant()
    def nobody_is_told_after_the_end(self) -> None:
        for request, told in self.told.items():
            assert sum(told) == (request.finished and bool(told)) and (not any(told) or told[-1])

    def teardown(self) -> None:
        self.system.scheduler.stop()
        self.what_is_finished_is_not_queued()
        for request in self.requests:
            if isinstance(request.result, Prefix):
                request.result.release()
        assert self.system.runner.slots_held == len(self.system.runner.prefixes._newest)
        assert not self.system.runner.open


class TokenSchedulerMachine(SchedulerMachine):
    """The same of frames that share forwards."""

    first = PREFILL

    def policy(self) -> Rule:
        return TokenFrames("pipelined", "freshness", 3)


SchedulerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


TokenSchedulerMachine.TestCase.settings = SchedulerMachine.TestCase.settings


TestScheduler = SchedulerMachine.TestCase


TestTokenScheduler = TokenSchedulerMachine.TestCase
