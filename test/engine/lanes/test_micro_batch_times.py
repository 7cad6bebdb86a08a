"""What the engine writes on the timeline: every micro-batch, run, miss and upload, and times of a GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from builders import make_observation, make_policy
from current_streams import computing_in
from frame_stream import FrameStream
from simulated_loop import Clock, drive, make_loop

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.lanes.lane import Lane
from vla_accel_ros.engine.lanes.times import MOST_READ, GpuTimes
from vla_accel_ros.engine.request import MicroBatch, Observe, Request
from vla_accel_ros.engine.streaming.loop import LoopRecord
from vla_accel_ros.timeline import TIMELINE, Event, flow

STAMP_NS = 1_000_000_000_000
NOW_NS = 77_000_000_000_000


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    TIMELINE.clear()
    yield
    TIMELINE.clear()


class Seconds:
    """A clock that goes on by a second whenever it is asked."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def on(track: str) -> list[Event]:
    return [event for event in TIMELINE.events() if event.track == track]


def test_micro_batches_follow_each_other_in_their_lane_by_the_schedulers_clock() -> None:
    engine = Engine(make_policy(), steps=2, staggered=2, slots=7)
    engine.scheduler.clock = Seconds()
    stream = FrameStream(engine)
    stamps = [STAMP_NS + number for number in range(3)]
    for stamp_ns in stamps:
        stream.frame(make_observation(stamp_ns=stamp_ns))
    stream.run()
    events = on("lane main")
    names = [event.name for event in events]
    assert names == ["observe.encode", "act.denoise"] * 3 + ["act.denoise"]
    assert [event.flows for event in events if event.name == "observe.encode"] == [(s,) for s in stamps]
    both = [event.flows for event in events if event.name == "act.denoise"]
    assert both == [(stamps[0],), (stamps[0], stamps[1]), (stamps[1], stamps[2]), (stamps[2],)]
    assert events[1].detail == "act 0 of frame 0"
    times = [at for event in events for at in (event.begin_ns, event.end_ns)]
    assert times == sorted(times) and all(at % 1_000_000_000 == 0 for at in times)


def test_a_frame_of_several_cameras_is_met_by_all_its_images() -> None:
    engine = Engine(make_policy())
    stamps_ns = {"front": STAMP_NS, "wrist": STAMP_NS + 5}
    observation = replace(make_observation(stamp_ns=STAMP_NS), robot="left", stamps_ns=stamps_ns)
    engine.observe(observation).release()
    (seen,) = on("lane main")
    assert seen.flows == (flow(STAMP_NS, "left"), flow(STAMP_NS + 5, "left"))
    assert seen.detail == "left observe of frame 0"
    (uploaded,) = on("upload")
    assert seen.begin_ns <= uploaded.begin_ns <= uploaded.end_ns <= seen.end_ns
    assert uploaded.flows == (flow(STAMP_NS, "left"),)


def test_a_micro_batch_that_fails_is_there_too() -> None:
    engine = Engine(make_policy())
    with pytest.raises(ValueError):
        engine.observe(make_observation(instruction="word " * 500))
    assert [event.name for event in on("lane main")] == ["observe.encode"]


def test_runs_of_a_loop_and_those_that_ended_too_late() -> None:
    clock = Clock()

    def body() -> bool:
        clock.now_s += 0.08 if clock.now_s > 100.15 else 0.02
        return True

    drive(make_loop(clock, body, rate_hz=10.0, deadline_s=0.05), clock, 100.25)
    told = [(event.name, round(event.begin_ns * 1e-9, 3), event.end_ns) for event in on("loop vision")]
    assert [(name, begin_s) for name, begin_s, _ in told] == [
        ("run", 100.0),
        ("run", 100.1),
        ("run", 100.2),
        ("deadline missed", 100.28),
    ]


def test_what_comes_to_nothing_and_what_idles() -> None:
    record = LoopRecord("action", 10.0, Clock())
    record.note_idle()
    record.note_miss()
    assert [event.name for event in on("loop action")] == ["came to nothing"]


def test_without_a_gpu_nothing_is_timed_in_the_lane() -> None:
    engine = Engine(make_policy())
    engine.observe(make_observation()).release()
    assert not [event for event in TIMELINE.events() if event.track.startswith("GPU")]
    batch = MicroBatch("encode", (Request(Observe()),))
    with Lane().timing(batch) as nothing:
        assert nothing is None


class Gpu:
    """A GPU of a test: events are recorded when it comes to them, at its own time in ms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pairs: int = 4) -> None:
        gc.collect()  # that of the test before tells the timeline nothing more
        self.now_ms, self.behind, self.gone = 1000.0, False, False
        gpu = self

        class Recorded:
            """A torch.cuda.Event."""

            def __init__(self, enable_timing: bool = False) -> None:
                self.at_ms, self.done = 0.0, False

            def record(self, stream: object) -> None:
                if gpu.gone:
                    raise RuntimeError("CUDA error: unspecified launch failure")
                self.at_ms, self.done = gpu.now_ms, not gpu.behind or stream == "idle"

            def synchronize(self) -> None:
                assert self.done, "somebody waits for a lane"

            def query(self) -> bool:
                return self.done

            def elapsed_time(self, other: Recorded) -> float:
                return other.at_ms - self.at_ms

        monkeypatch.setattr(TIMELINE, "now_ns", lambda: NOW_NS)
        monkeypatch.setattr(torch.cuda, "Event", Recorded)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: "idle")
        computing_in(monkeypatch, lambda: "lane")
        self.times = GpuTimes("test", torch.device("cuda"), pairs=pairs)

    def run(self, stamp_ns: int, ms: float) -> None:
        observation = make_observation(stamp_ns=stamp_ns)
        with self.times(MicroBatch("encode", (Request(Observe(observation)),))):
            self.now_ms += ms

    def told(self) -> list[tuple[int, float, float]]:
        """Frames, and how long before now in ms they began and ended."""
        return [
            (event.flows[0], (NOW_NS - event.begin_ns) * 1e-6, (NOW_NS - event.end_ns) * 1e-6)
            for event in self.times.spans()
        ]


def test_gpu_times_are_put_on_the_hosts_clock_when_they_are_read_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Gpu(monkeypatch)
    gpu.run(1, 5000.0)
    gpu.now_ms += 1000.0
    gpu.run(2, 2000.0)
    assert gpu.told() == [(1, 8000.0, 3000.0), (2, 2000.0, 0.0)]
    assert gpu.told() == []


def test_gpu_times_that_are_not_known_are_left_for_the_next_time_and_overwritten_ones_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Gpu(monkeypatch)
    gpu.run(1, 1000.0)
    gpu.behind = True
    gpu.run(2, 1000.0)
    assert gpu.told() == [(1, 2000.0, 1000.0)]
    gpu.behind = False
    for stamp_ns in range(3, 9):
        gpu.run(stamp_ns, 1000.0)
    assert [stamp_ns for stamp_ns, _, _ in gpu.told()] == [5, 6, 7, 8]


def test_a_host_that_is_held_up_between_its_clock_and_the_gpus_moves_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Gpu(monkeypatch)
    gpu.run(1, 1000.0)
    held_up_ns = iter([0, 2_000_000, 2_000_000, 2_000_001, 2_000_001, 7_000_000])
    monkeypatch.setattr(TIMELINE, "now_ns", lambda: NOW_NS + next(held_up_ns))
    ((_, begun_ms, ended_ms),) = gpu.told()
    assert (begun_ms, ended_ms) == pytest.approx((998.0, -2.0)), "by the second of three readings"


def test_a_lane_is_told_what_its_gpu_took_and_of_a_gpu_that_is_gone_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, batch = Gpu(monkeypatch), MicroBatch("encode", (Request(Observe()),))
    with gpu.times(batch) as device:
        gpu.now_ms += 1500.0
    gpu.run(2, 700.0)
    assert device.seconds() == pytest.approx(1.5) and device.over()

    def gone(event: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    for name in ("synchronize", "query"):
        monkeypatch.setattr(torch.cuda.Event, name, gone)
    assert device.seconds() is None and device.over(), "so that it is waited for, which says why"


def test_many_gpu_times_are_read_some_at_a_time_and_are_all_in_the_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, total = Gpu(monkeypatch, pairs=3 * MOST_READ), 2 * MOST_READ + 10
    for stamp_ns in range(total):
        gpu.run(stamp_ns, 1.0)
    assert len(gpu.times.spans()) == MOST_READ
    assert [event.flows[0] for event in on("GPU, lane test")] == list(range(MOST_READ, total))


def test_a_gpu_that_is_gone_hides_no_error_and_loses_no_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    gpu.gone = True
    with pytest.raises(ValueError, match="its own"), gpu.times(MicroBatch("encode", (Request(Observe()),))):
        raise ValueError("its own")
    gpu.run(1, 10.0)
    assert gpu.told() == []
    gpu.gone = False
    gpu.run(2, 10.0)
    assert [stamp_ns for stamp_ns, _, _ in gpu.told()] == [2]


@pytest.mark.gpu
def test_gpu_times_lie_within_the_run_of_the_host_and_are_told_once() -> None:
    engine = Engine(make_policy(device="cuda"))
    engine.observe(make_observation(stamp_ns=STAMP_NS)).release()  # first uses
    torch.cuda.synchronize()
    TIMELINE.events()
    TIMELINE.clear()
    with engine.observe(make_observation(stamp_ns=STAMP_NS)) as prefix:
        engine.act(prefix)
    torch.cuda.synchronize()
    over_ns = TIMELINE.now_ns()
    events = TIMELINE.events()
    host = [event for event in events if event.track == "lane main"]
    gpu = [event for event in events if event.track == "GPU, lane main"]
    assert [event.name for event in gpu] == [event.name for event in host]
    slack_ns = 200_000  # between the event that tells where GPU time is, and the look at the clock
    for on_host, on_gpu in zip(host, gpu, strict=True):
        assert on_gpu.flows == on_host.flows and on_gpu.end_ns > on_gpu.begin_ns
        assert on_host.begin_ns - slack_ns <= on_gpu.begin_ns and on_gpu.end_ns <= over_ns + slack_ns
    assert len([e for e in TIMELINE.events() if e.track.startswith("GPU")]) == len(gpu)
