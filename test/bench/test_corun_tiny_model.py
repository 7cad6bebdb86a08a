"""Requests of agents with a tiny model: every scheduler says the same, on a CPU and on parts of a GPU."""

from __future__ import annotations

import corun
import pytest
import torch
from agent_durations import SETTINGS

from agents.captured import Captured
from agents.durations import read
from agents.measured import measure
from agents.model import TINY, AgentModel
from agents.rules import SCREENS_FIRST, SHARED
from agents.runner import AgentRunner
from agents.schedulers import FIFO, LANES, make
from agents.workload import Agents, Arrival
from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.request import ASK, Request
from vla_accel_ros.engine.scheduling.scheduler import Scheduler


def said(captured: Captured, name: str, lengths: list[int]) -> list[tuple[int, ...]]:
    """The answers to screens that come all at once."""
    cuda = captured.model.device.type == "cuda"
    streams = {lane: torch.cuda.Stream(captured.model.device) for lane in LANES[name] if cuda}
    lanes = [corun.lane_on(lane, streams) for lane in LANES[name]]
    captured.encoded = 0
    runner = AgentRunner(captured.pool, TINY.prompt, captured)
    scheduler = Scheduler(runner, make(name, SETTINGS, captured.chunk, 132), lanes=lanes)
    served = corun.serve(scheduler, [Arrival(0.0, tokens) for tokens in lengths])
    assert not [one.lost for one in served if one.lost]
    if cuda:  # what is read here was written in streams of lanes
        torch.cuda.synchronize()
    assert captured.pool.free == captured.pool.slots and captured.answering == 0
    return [one.said for one in served]


LENGTHS = [3, 12, 5, 1, 7, 12, 2, 9, 4]


@pytest.fixture(scope="module")
def alone() -> list[tuple[int, ...]]:
    """What is said one after another, on a CPU."""
    model = AgentModel(TINY, torch.device("cpu"), torch.float32)
    found = said(Captured(model, slots=1, chunk=8), FIFO, LENGTHS)
    assert [len(answer) for answer in found] == LENGTHS
    assert len({answer[0] for answer in found}) > 1, "else screens that were mixed up would not be seen"
    return found


@pytest.mark.usefixtures("one_thread")
class TestTinyModel:
    @pytest.mark.parametrize("name", LANES)
    @pytest.mark.parametrize("slots", [3, 16])
    def test_every_scheduler_says_the_same(self, alone: list[tuple[int, ...]], name: str, slots: int) -> None:
        model = AgentModel(TINY, torch.device("cpu"), torch.float32)
        assert said(Captured(model, slots=slots, chunk=8), name, LENGTHS) == alone

    def test_a_prompt_in_chunks_is_the_same_prompt(self) -> None:
        model = AgentModel(TINY, torch.device("cpu"), torch.float32)
        captured = Captured(model, slots=2, chunk=8)
        assert TINY.prompt % 8, "the last chunk is not full"
        keys = []
        for tokens in (0, 8):
            captured.encoded = 0
            captured.encode(1, None)
            for begin in range(0, TINY.prompt, tokens or TINY.prompt):
                captured.prefill(1, begin, tokens, (), None)
            keys.append((captured.open(1, None), captured.pool.k[1, :, :, : TINY.prompt].clone()))
        assert keys[0][0] == keys[1][0]
        torch.testing.assert_close(keys[0][1], keys[1][1], rtol=1e-4, atol=1e-5)

    def test_a_step_leaves_slots_alone_that_have_no_answer(self) -> None:
        """Neither a prompt that is prefilled beside it nor one whose answer has ended is written to."""
        captured = Captured(AgentModel(TINY, torch.device("cpu"), torch.float32), slots=4, chunk=8)
        for slot in (2, 3):
            captured.encode(slot, None)
            captured.prefill(slot, 0, 0, (), None)
        captured.open(3, None)
        self._steps_leave(captured, answering=3, other=2)
        captured.close(3)
        captured.open(2, None)
        self._steps_leave(captured, answering=2, other=3)

    @staticmethod
    def _steps_leave(captured: Captured, answering: int, other: int) -> None:
        """All of another slot but the place that nobody reads."""
        kept = captured.pool.k[other, :, :, :-1].clone()
        captured.decode([answering], None)
        captured.prefill(0, 0, 8, [answering], None)
        assert torch.equal(captured.pool.k[other, :, :, :-1], kept)

    def test_what_is_not_captured_is_refused(self) -> None:
        model = AgentModel(TINY, torch.device("cpu"), torch.float32)
        with pytest.raises(ValueError, match="a pool of 33 slots was asked for; give at most 32"):
            Captured(model, slots=33)
        with pytest.raises(ValueError, match="a chunk of 4 tokens was asked for; 8 are captured"):
            Captured(model, slots=2, chunk=8).prefill(0, 0, 4, (), None)

    def test_an_answer_without_a_screen_is_refused(self) -> None:
        model = AgentModel(TINY, torch.device("cpu"), torch.float32)
        captured = Captured(model, slots=2, chunk=8)
        scheduler = Scheduler(AgentRunner(captured.pool, TINY.prompt, captured), make(FIFO, SETTINGS, 8))
        with pytest.raises(ValueError, match="a screen, or the answer to a prefix, not to ask"):
            scheduler.submit(Request(ASK))

    def test_screens_that_fail_or_are_cancelled_give_their_room_back(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = AgentModel(TINY, torch.device("cpu"), torch.float32)
        captured = Captured(model, slots=2, chunk=8)
        scheduler = Scheduler(AgentRunner(captured.pool, TINY.prompt, captured), make(FIFO, SETTINGS, 8))
        agents = Agents(scheduler)
        failing = agents.submit(Arrival(0.0, 3), 0.0)

        def fail(slot: int, split: Split | None) -> None:
            raise RuntimeError("no screen")

        with monkeypatch.context() as patch:
            patch.setattr(captured, "encode", fail)
            scheduler.step()
        cancelled = agents.submit(Arrival(0.0, 3), 0.0)
        scheduler.step()
        assert captured.pool.free == 1
        scheduler.cancel(*scheduler.requests)
        assert "no screen" in failing.lost and "cancelled" in cancelled.lost
        assert captured.pool.free == 2 and agents.idle.is_set()


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*LANES])
def test_captured_stages_on_parts_of_a_gpu_say_what_a_cpu_says(
    alone: list[tuple[int, ...]], name: str
) -> None:
    model = AgentModel(TINY, torch.device("cpu"), torch.float32).to(torch.device("cuda"))
    captured = Captured(model, slots=16, splits=(8, 16, 32), chunk=8)
    assert captured.splits == (8, 16, 32)
    assert said(captured, name, LENGTHS) == alone


@pytest.mark.gpu
def test_stages_are_timed_alone_and_beside() -> None:
    model = AgentModel(TINY, torch.device("cuda"), torch.bfloat16)
    durations = measure(Captured(model, slots=4, splits=(16, 32), chunk=8))
    assert durations.splits == (16, 32) and durations.beside.keys() == {SHARED, SCREENS_FIRST, 16, 32}
    assert read(durations.document()).sms == durations.sms > 32
