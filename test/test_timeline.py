"""The ring of events: bounded, written by any thread, told in pages, joined with those of other processes."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from vla_accel_ros.timeline import (
    MOST_SCANNED,
    MOST_TOLD,
    Event,
    Recorded,
    Timeline,
    flow,
    merged,
    process_name,
)


class Clock:
    """Time that passes when the test says so."""

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timeline(clock: Clock) -> Timeline:
    return Timeline(most=100, clock_ns=clock)


def test_an_event_is_told_as_it_was_written(timeline: Timeline, clock: Clock) -> None:
    clock.now_ns = 30
    timeline.span("lane main", "observe.encode", 10, flows=(7, 8), detail="frame 3")
    timeline.span("lane main", "act.denoise", 12, 20)
    timeline.instant("loop vision", "deadline missed", detail=-5)
    timeline.instant("lane main", "act.denoise", detail=("", "act", 3, "of frame", 7))
    assert timeline.events() == [
        Event("lane main", "observe.encode", 10, 30, (7, 8), "frame 3"),
        Event("lane main", "act.denoise", 12, 20),
        Event("loop vision", "deadline missed", 30, 30, (), "-5"),
        Event("lane main", "act.denoise", 30, 30, (), "act 3 of frame 7"),
    ]


def test_the_oldest_are_forgotten(timeline: Timeline, clock: Clock) -> None:
    for clock.now_ns in range(250):
        timeline.instant("loop vision", str(clock.now_ns))
    assert [event.begin_ns for event in timeline.events()] == list(range(150, 250))
    assert timeline.page().oldest_ns == 150


def test_only_what_ended_since_then_is_told(timeline: Timeline) -> None:
    for end_ns in range(0, 100, 10):
        timeline.span("lane main", "run", 0, end_ns)
    assert [event.end_ns for event in timeline.events(since_ns=70)] == [70, 80, 90]
    timeline.clear()
    assert timeline.events() == []


def test_pages_are_small_and_together_are_all(clock: Clock) -> None:
    timeline, total = Timeline(clock_ns=clock), 3 * MOST_SCANNED
    for clock.now_ns in range(total):
        timeline.instant("loop vision", "run")
    position, events, sizes = 0, list[int](), set[int]()
    while True:
        page = timeline.page(0, position)
        sizes.add(len(page.events))
        events += [event.begin_ns for event in page.events]
        position = page.next
        if not page.more:
            break
    assert events == list(range(total)) and max(sizes) == MOST_TOLD
    since_ns = total - 10  # far from the beginning: pages of nothing until there
    assert [event.begin_ns for event in timeline.events(since_ns)] == list(range(since_ns, total))


def test_pages_go_on_where_they_ended_though_more_is_written_meanwhile(clock: Clock) -> None:
    timeline = Timeline(most=2 * MOST_TOLD, clock_ns=clock)
    for clock.now_ns in range(2 * MOST_TOLD):
        timeline.instant("loop vision", "run")
    first = timeline.page()
    for clock.now_ns in range(2 * MOST_TOLD, 2 * MOST_TOLD + 5):  # as many of the oldest are forgotten
        timeline.instant("loop vision", "run")
    second = timeline.page(0, first.next)
    assert second.events[0].begin_ns == first.events[-1].begin_ns + 1


def test_many_threads_lose_nothing_while_it_is_read(request: pytest.FixtureRequest) -> None:
    timeline, count, threads = Timeline(), 4000, 4
    begin = threading.Barrier(threads + 1)
    usual_s = sys.getswitchinterval()
    request.addfinalizer(lambda: sys.setswitchinterval(usual_s))
    sys.setswitchinterval(1e-6)  # threads are interrupted wherever they can be

    def write(thread: int) -> None:
        begin.wait()
        for number in range(count):
            timeline.span(f"lane {thread}", "run", number, number)

    writers = [threading.Thread(target=write, args=(thread,)) for thread in range(threads)]
    for writer in writers:
        writer.start()
    begin.wait()
    while any(writer.is_alive() for writer in writers):
        timeline.events()
    events = timeline.events()
    for thread in range(threads):
        own_events = [event.begin_ns for event in events if event.track == f"lane {thread}"]
        assert own_events == list(range(count))


def test_a_source_tells_when_it_is_read_once_and_is_forgotten_with_its_object(timeline: Timeline) -> None:
    class Gpu:
        def __init__(self) -> None:
            self.known = [Event("GPU, lane main", "act.denoise", 5, 6, (9,))]

        def spans(self) -> Iterable[Event]:
            pending, self.known = self.known, []
            return pending

    class Broken:
        def spans(self) -> Iterable[Event]:
            raise RuntimeError("the device is gone")

    gpu, broken = Gpu(), Broken()
    timeline.add_source(gpu.spans)
    timeline.add_source(broken.spans)
    assert timeline.events() == timeline.events() == [Event("GPU, lane main", "act.denoise", 5, 6, (9,))]
    gpu.known = [Event("GPU, lane main", "act.denoise", 7, 8)]
    del gpu
    gc.collect()
    assert len(timeline.events()) == 1


def test_a_frame_has_one_flow_and_robots_that_see_at_once_have_two() -> None:
    stamp_ns = 1_795_371_185_750_588_657
    assert flow(stamp_ns) == stamp_ns
    numbers = {flow(stamp_ns), flow(stamp_ns, "left"), flow(stamp_ns, "right")}
    assert len(numbers) == 3 and all(0 < number < 1 << 63 for number in numbers)


def record(process: str, node: str, times: Sequence[int] = (), ros_ns: int = 0) -> Recorded:
    events = tuple(Event("lane main", "run", time_ns, time_ns + 1) for time_ns in times)
    return Recorded(process, (node,), events, 1000, ros_ns, 10)


def test_nodes_of_one_process_are_told_once() -> None:
    records = [record("boot 7 a", "/inference", (20, 30)), record("boot 7 a", "/trajectory", (20, 30, 40))]
    (process,) = merged(records)
    assert set(process.nodes) == {"/inference", "/trajectory"} and len(process.events) == 3


def test_another_machine_is_put_beside_the_first_by_ros_time() -> None:
    here, there = record("boot 7 a", "/inference", (20,), 5000), record("other 7 a", "/camera", (20,), 5300)
    first, second = merged([here, there])
    assert first.events[0].begin_ns == 20  # its clock is the trace's
    assert (second.events[0].begin_ns, second.events[0].end_ns) == (320, 321)
    assert (second.monotonic_ns, second.oldest_ns) == (1300, 310)


def test_what_was_told_later_than_the_first_was_asked_is_left_out() -> None:
    first, later = (
        record("boot 7 a", "/inference", (20, 990)),
        record("boot 8 a", "/trajectory", (1000, 1005)),
    )
    records = merged([first, replace(later, monotonic_ns=1010)])
    assert [[event.begin_ns for event in process.events] for process in records] == [[20, 990], [1000]]


def test_a_process_has_a_name_of_its_own() -> None:
    name = process_name()
    assert name == process_name() and name.split()[1] == str(os.getpid()) and len(name.split()) == 3
