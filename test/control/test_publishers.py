"""Who is a second publisher, and who took another's place: the graph and the time are given."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from vla_accel_ros.control.publishers import LOOKS_HZ, Publishers

OLD, NEW = (1,), (2,)
STATES, CHUNKS, COMMANDS = "joint_states", "action_chunk", "arm/commands"


class Graph:
    """Publishers of a topic: id -> full name of the node, empty while it is unknown."""

    def __init__(self) -> None:
        self.now_s, self.topic, self.there = 100.0, STATES, {OLD: "/sim_robot"}
        self.writer = ""
        self.hold = MagicMock(released=False, lent=False)
        clock = MagicMock()
        clock.monotonic_ns.side_effect = lambda: round(self.now_s * 1e9)
        self.publishers = Publishers(self.hold, clock, "/trajectory", STATES, CHUNKS, [COMMANDS])

    def look(self, seconds: float, silent: bool = False) -> None:
        for _ in range(round(seconds * LOOKS_HZ)):
            self.now_s += 1.0 / LOOKS_HZ
            if silent:
                self.publishers.silent(self.topic)
            published = dict.fromkeys((STATES, CHUNKS, COMMANDS), ())
            self.publishers.look(published | {self.topic: tuple(self.there.items())}, self.writer)

    @property
    def beside(self) -> tuple[str, ...]:
        return self.publishers.beside

    @property
    def faults(self) -> list[str]:
        return [call.args[0] for call in self.hold.fault.mock_calls]


@pytest.fixture
def graph() -> Graph:
    graph = Graph()
    graph.look(5.0)
    return graph


@pytest.mark.parametrize("unnamed_s", [0.0, 3.0])
def test_one_that_comes_in_a_silence_took_the_others_place_however_late_its_name_is_known(
    graph: Graph, unnamed_s: float
) -> None:
    graph.look(2.0, silent=True)  # the driver was killed; the middleware has not forgotten it
    graph.there[NEW] = "" if unnamed_s else "/sim_robot"
    graph.look(unnamed_s)
    graph.there[NEW] = "/sim_robot"
    graph.look(5.0)
    assert graph.faults == []


@pytest.mark.parametrize("name", ["/another", ""])
def test_one_that_comes_beside_one_that_tells_is_a_second(graph: Graph, name: str) -> None:
    graph.there[NEW] = name
    graph.look(3.0)
    assert len(graph.faults) == 1 and "a second publisher has appeared on joint_states" in graph.faults[0]


def test_a_driver_that_is_back_at_once_under_its_name_has_its_own_place(graph: Graph) -> None:
    """An arm and a gripper share the joint states; the gripper's driver is restarted, faster than it is
    late."""
    gripper, restarted = (3,), (4,)
    graph.there[gripper] = "/gripper"
    graph.publishers.begin()
    graph.look(5.0)
    del graph.there[gripper]
    graph.look(0.2)
    graph.there[restarted] = "/gripper"
    graph.look(3.0)
    assert graph.faults == []
    graph.there[(5,)] = "/gripper"  # and another time, beside itself
    graph.look(1.0)
    assert len(graph.faults) == 1 and "/gripper" in graph.faults[0]


@pytest.mark.parametrize("later_s", [0.4, 5.0, 60.0])
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_driver_that_comes_back_beside_the_one_that_took_its_place_is_told_as_that(
    graph: Graph, later_s: float, forgotten: bool
) -> None:
    graph.look(2.0, silent=True)  # sim_robot was killed
    graph.there[NEW] = "/substitute"
    graph.look(1.0, silent=True)
    if forgotten:
        del graph.there[OLD]
    graph.look(later_s)
    assert graph.faults == []
    graph.there[(3,)] = "/sim_robot"
    graph.look(1.0)
    (fault,) = graph.faults
    assert "/sim_robot has come back on joint_states beside" in fault and "/substitute" in fault


def test_a_driver_may_take_turns_with_a_substitute_that_ended(graph: Graph) -> None:
    for _ in range(3):
        for gid, name in (((2,), "/substitute"), ((3,), "/sim_robot")):
            graph.look(2.0, silent=True)
            graph.there = {gid: name}
            graph.look(5.0)
    assert graph.faults == []


def test_one_that_comes_long_after_a_silence_is_a_second(graph: Graph) -> None:
    graph.look(2.0, silent=True)
    graph.look(2.0)
    graph.there[NEW] = "/another"
    graph.look(1.0)
    assert len(graph.faults) == 1


@pytest.mark.parametrize("homing", [False, True])
def test_another_publisher_of_commands_is_a_second_commander_also_on_the_way_home(graph, homing):
    graph.hold.lent, graph.topic, graph.there = homing, COMMANDS, {}
    graph.look(1.0)
    graph.there = {NEW: "/stranger"}
    graph.look(1.0)
    assert graph.faults and "another publisher of commands has appeared on arm/commands" in graph.faults[0]


def test_while_released_others_may_command(graph):
    graph.hold.released, graph.topic, graph.there = True, COMMANDS, {NEW: "/move_group"}
    graph.look(1.0)
    assert not graph.faults and not graph.beside


@pytest.fixture
def replaced(graph) -> Graph:
    """One of chunks, and another that has come in a silence of the first and tells from then on."""
    graph.topic, graph.there = CHUNKS, {}
    graph.look(1.0, silent=True)
    graph.there = {OLD: "/inference"}
    graph.look(10.0)
    graph.look(1.0, silent=True)
    graph.there[NEW] = "/another"
    graph.look(25.0)
    assert not graph.faults and not graph.beside  # the first may be dead
    return graph


def test_two_of_chunks_that_both_stay_are_two_though_one_came_in_a_silence(replaced):
    replaced.look(10.0)
    assert replaced.beside == ("a second publisher is there on action_chunk: /another, /inference; end it",)
    replaced.hold.hold.assert_called_with(replaced.beside[0], passing=True)
    replaced.look(60.0)
    assert replaced.beside
    del replaced.there[OLD]
    replaced.look(1.0)
    assert not replaced.beside and not replaced.faults


def test_one_of_chunks_that_took_a_dead_ones_place_is_the_only_one(replaced):
    del replaced.there[OLD]
    replaced.look(60.0)
    assert not replaced.beside and not replaced.faults


def test_a_slot_written_beside_the_topic_stays_a_second_publisher_though_it_began_in_a_silence(graph):
    graph.topic, graph.there = CHUNKS, {OLD: "/inference"}
    graph.look(10.0)
    graph.look(1.0, silent=True)
    graph.writer = "/another"
    graph.look(25.0)
    assert not graph.faults and not graph.beside
    graph.look(10.0)
    assert graph.beside == ("a second publisher is there on action_chunk: /another, /inference; end it",)


def test_a_slot_that_is_written_again_by_a_node_of_the_same_name_is_a_new_publisher(graph):
    graph.topic, graph.there, graph.writer = CHUNKS, {}, "/inference"
    graph.look(10.0)
    graph.look(1.0, silent=True)
    graph.there, graph.writer = {OLD: "/another"}, ""
    graph.look(10.0)
    graph.writer = "/inference"
    graph.look(1.0)
    assert len(graph.faults) == 1 and "a second publisher has appeared on action_chunk" in graph.faults[0]
