"""What the executor of nodes calls, when, and in which thread."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import rclpy
from control_msgs.action import FollowJointTrajectory
from rclpy.action import ActionClient, ActionServer
from rclpy.action.server import ServerGoalHandle
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data as SENSOR
from rclpy.task import Future
from rclpy.timer import Timer
from std_msgs.msg import Int32
from std_srvs.srv import Trigger

from vla_accel_ros.nodes.running import executor as executor_file
from vla_accel_ros.nodes.running.executor import EVENTS_S, DirectExecutor

LIMIT_S = 60.0
RCLPY = ("installed", "renamed")
"""The installed rclpy, and one since rclpy#1469 and #1510, which no wheel has."""


def executors_of(rclpy_names: str) -> ModuleType:
    """The installed rclpy.executors with the names and the spinning of another version."""
    source = re.sub(r"self\._tasks\b", "self._all_tasks", inspect.getsource(rclpy.executors))
    module = ModuleType("rclpy.executors")
    module.__package__ = "rclpy"
    exec(compile(source, "executors_renamed.py", "exec"), module.__dict__)
    module.__dict__["ExternalShutdownException"] = ExternalShutdownException
    base: Any = module.__dict__["SingleThreadedExecutor"]

    class Renamed(base):
        spinning = False

        @property
        def _pending_tasks(self) -> dict[object, object]:
            return {task: (entity, node) for task, entity, node in self._all_tasks}

        def _enter_spin(self) -> None:
            if self.spinning:
                raise RuntimeError("Executor is already spinning")
            self.spinning = True

        def spin(self) -> None:
            self._enter_spin()
            while self._context.ok() and not self._is_shutdown:
                self._spin_once_impl()

        def spin_once(self, timeout_sec: float | None = None) -> None:
            self._enter_spin()
            try:
                self._spin_once_impl(timeout_sec)
            finally:
                self.spinning = False

    if rclpy_names == "renamed":
        module.__dict__["SingleThreadedExecutor"] = Renamed
    return module


def direct_executor(rclpy_names: str) -> type[DirectExecutor]:
    """The class of nodes/running/executor.py as it is with that rclpy."""
    if rclpy_names == "installed":
        return DirectExecutor
    spec = importlib.util.spec_from_file_location("executor_of_another_rclpy", executor_file.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {"rclpy.executors": executors_of(rclpy_names)}):
        spec.loader.exec_module(module)
    return module.DirectExecutor


class Graph:
    """A node that the executor spins, and another one for whoever is at the other end."""

    def __init__(self, rclpy_names: str = "installed") -> None:
        self.context = Context()
        rclpy.init(context=self.context)
        self.node, self.other = (Node(name, context=self.context) for name in ("node", "other"))
        self.executor = direct_executor(rclpy_names)(context=self.context)
        self.executor.add_node(self.node)
        self.executor.add_node(self.other)

    def spin_until(
        self, condition: Callable[[], object], while_not: Callable[[], object] = lambda: None
    ) -> None:
        """Spin until it is true; calls while_not before each turn. Fails after LIMIT_S."""
        end = self.node.get_clock().now().nanoseconds + int(LIMIT_S * 1e9)
        while not condition():
            assert self.node.get_clock().now().nanoseconds < end, "nothing came"
            while_not()
            self.executor.spin_once(timeout_sec=0.01)

    def close(self) -> None:
        self.executor.shutdown()
        for node in (self.node, self.other):
            node.destroy_node()
        self.context.try_shutdown()


@pytest.fixture(params=RCLPY)
def graph(ros_domain: int, request: pytest.FixtureRequest) -> Iterator[Graph]:
    graph = Graph(request.param)
    yield graph
    graph.close()


def test_spin_takes_messages_without_a_task_of_rclpy(graph: Graph) -> None:
    publisher = graph.other.create_publisher(Int32, "numbers", 10)
    messages: list[int] = []

    def receive(message: Int32) -> None:
        messages.append(message.data)
        if len(messages) == 10:
            graph.executor.shutdown()

    subscription = graph.node.create_subscription(Int32, "numbers", receive, 10)
    graph.other.create_timer(0.001, lambda: publisher.publish(Int32(data=7)))
    with mock.patch.object(graph.executor, "_make_handler", wraps=graph.executor._make_handler) as handlers:
        graph.executor.spin()
    assert messages == [7] * 10
    assert subscription not in [call.args[0] for call in handlers.call_args_list]
    assert graph.executor.description == "direct"


def test_spin_calls_guard_conditions_without_a_turn_of_rclpy(graph: Graph) -> None:
    calls: list[int] = []

    def count() -> None:
        calls.append(threading.get_ident())
        if len(calls) < 10:
            guard.trigger()

    guard = graph.node.create_guard_condition(count)
    with mock.patch.object(graph.executor, "_make_handler", wraps=graph.executor._make_handler) as handlers:
        guard.trigger()
        graph.spin_until(lambda: len(calls) == 10)
    assert calls == [threading.get_ident()] * 10
    assert [call.args[0] for call in handlers.call_args_list].count(guard) < 5  # in its turns each EVENTS_S


def test_an_rclpy_with_unknown_names_runs_its_own_executor_and_is_told(ros_domain: int) -> None:
    graph = Graph("unknown")
    graph.node.create_service(Trigger, "ask", lambda request, response: response)
    client = graph.other.create_client(Trigger, "ask")
    graph.spin_until(client.service_is_ready)
    future = client.call_async(Trigger.Request())
    graph.executor.spin_until_future_complete(future)
    assert future.done() and not graph.executor.direct
    assert "rclpy's own" in graph.executor.description
    graph.close()


def test_messages_and_timers_are_called_in_the_thread_that_spins(graph: Graph) -> None:
    heard: list[int] = []
    threads = set()

    def hear(message: Int32) -> None:
        heard.append(message.data)
        threads.add(threading.get_ident())

    publisher = graph.other.create_publisher(Int32, "numbers", 10)
    graph.node.create_subscription(Int32, "numbers", hear, 10)
    sent = iter(range(1000))
    graph.node.create_timer(0.005, lambda: publisher.publish(Int32(data=next(sent))))
    graph.spin_until(lambda: len(heard) >= 20)
    assert heard == list(range(heard[0], heard[0] + len(heard)))  # each once, in order
    assert threads == {threading.get_ident()}


def test_a_raw_subscription_gets_bytes_and_one_of_two_arguments_the_message_info(graph: Graph) -> None:
    raw: list[bytes] = []
    infos: list[dict] = []
    publisher = graph.other.create_publisher(Int32, "numbers", SENSOR)
    graph.node.create_subscription(Int32, "numbers", raw.append, SENSOR, raw=True)
    graph.node.create_subscription(Int32, "numbers", lambda message, info: infos.append(info), SENSOR)
    graph.spin_until(lambda: raw and infos, lambda: publisher.publish(Int32(data=7)))
    assert raw[0][4:8] == (7).to_bytes(4, "little")
    assert "source_timestamp" in infos[0]


def test_what_a_callback_creates_is_heard_and_what_it_destroys_is_not_called_again(graph: Graph) -> None:
    heard: list[str] = []
    publisher = graph.other.create_publisher(Int32, "numbers", 10)

    def destroy_and_create(message: Int32) -> None:
        heard.append("first")
        graph.node.destroy_subscription(first)
        graph.node.destroy_timer(timer)
        graph.node.create_subscription(Int32, "numbers", lambda _: heard.append("second"), 10)

    first = graph.node.create_subscription(Int32, "numbers", destroy_and_create, 10)
    timer = graph.node.create_timer(0.0, lambda: heard.append("timer"))
    graph.spin_until(lambda: "first" in heard, lambda: publisher.publish(Int32()))
    del heard[:]
    graph.spin_until(lambda: "second" in heard, lambda: publisher.publish(Int32()))
    assert set(heard) == {"second"}


def test_a_timer_that_a_callback_of_the_same_turn_destroys_is_not_called(graph: Graph) -> None:
    called: list[str] = []
    timers: dict[str, Timer] = {}

    def destroy_the_other(name: str, other: str) -> None:
        called.append(name)
        graph.node.destroy_timer(timers[other])

    for name, other in (("a", "b"), ("b", "a")):
        timers[name] = graph.node.create_timer(0.0, partial(destroy_the_other, name, other))
    graph.spin_until(lambda: len(called) >= 3)
    assert len(set(called)) == 1


def test_a_subscription_that_its_callback_group_never_lets_run_keeps_its_messages(graph: Graph) -> None:
    class Polled(MutuallyExclusiveCallbackGroup):
        def can_execute(self, entity: object) -> bool:
            return False

    called: list[Int32] = []
    heard: list[Int32] = []
    publisher = graph.other.create_publisher(Int32, "numbers", 10)
    polled = graph.node.create_subscription(Int32, "numbers", called.append, 10, callback_group=Polled())
    graph.node.create_subscription(Int32, "numbers", heard.append, 10)
    graph.spin_until(lambda: len(heard) >= 3, lambda: publisher.publish(Int32(data=5)))
    assert not called
    with polled.handle:
        assert polled.handle.take_message(Int32, False)[0].data == 5


def test_a_coroutine_that_waits_keeps_its_callback_group_and_gives_it_back(graph: Graph) -> None:
    group = MutuallyExclusiveCallbackGroup()
    inner = graph.other.create_client(Trigger, "inner", callback_group=ReentrantCallbackGroup())
    heard: list[Int32] = []

    async def ask(request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        await inner.call_async(Trigger.Request())
        return response

    graph.node.create_service(Trigger, "inner", lambda request, response: response)
    graph.other.create_service(Trigger, "outer", ask, callback_group=group)
    graph.other.create_subscription(Int32, "numbers", heard.append, 10, callback_group=group)
    publisher = graph.node.create_publisher(Int32, "numbers", 10)
    client = graph.node.create_client(Trigger, "outer")
    graph.spin_until(lambda: client.service_is_ready() and inner.service_is_ready())
    future = client.call_async(Trigger.Request())
    graph.spin_until(future.done)
    graph.spin_until(lambda: heard, lambda: publisher.publish(Int32()))


def test_services_are_answered_at_once_and_a_coroutine_may_wait_for_another_service(graph: Graph) -> None:
    group = ReentrantCallbackGroup()
    inner = graph.node.create_client(Trigger, "inner", callback_group=group)

    def answer(request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.message = "inner"
        return response

    async def ask_first(request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.message = f"outer of {(await inner.call_async(Trigger.Request())).message}"
        return response

    graph.other.create_service(Trigger, "inner", answer)
    graph.node.create_service(Trigger, "outer", ask_first, callback_group=group)
    client = graph.other.create_client(Trigger, "outer")
    graph.spin_until(lambda: client.service_is_ready() and inner.service_is_ready())
    future = client.call_async(Trigger.Request())
    graph.executor.spin_until_future_complete(future, timeout_sec=LIMIT_S)
    assert future.result().message == "outer of inner"


def test_actions_go_through(graph: Graph) -> None:
    def execute(goal: ServerGoalHandle) -> FollowJointTrajectory.Result:
        goal.succeed()
        return FollowJointTrajectory.Result(error_string="arrived")

    ActionServer(graph.node, FollowJointTrajectory, "follow", execute)
    client = ActionClient(graph.other, FollowJointTrajectory, "follow")
    graph.spin_until(client.server_is_ready)
    accepted = client.send_goal_async(FollowJointTrajectory.Goal())
    graph.executor.spin_until_future_complete(accepted, timeout_sec=LIMIT_S)
    result = accepted.result().get_result_async()
    graph.executor.spin_until_future_complete(result, timeout_sec=LIMIT_S)
    assert result.result().result.error_string == "arrived"


def test_an_incompatible_qos_is_told(graph: Graph) -> None:
    events: list[object] = []
    callbacks = rclpy.event_handler.SubscriptionEventCallbacks(incompatible_qos=events.append)
    graph.other.create_publisher(Int32, "numbers", SENSOR)  # best effort
    graph.node.create_subscription(Int32, "numbers", lambda _: None, 10, event_callbacks=callbacks)
    graph.spin_until(lambda: events)
    assert EVENTS_S < 1.0


def test_an_error_of_a_callback_ends_the_spinning_and_the_next_turn_goes_on(graph: Graph) -> None:
    called: list[int] = []

    def fail_once() -> None:
        called.append(1)
        if len(called) == 1:
            raise RuntimeError("broken")

    graph.node.create_timer(0.0, fail_once)
    with pytest.raises(RuntimeError, match="broken"):
        graph.spin_until(lambda: False)
    graph.spin_until(lambda: len(called) >= 3)


def test_a_future_that_another_thread_sets_ends_the_spinning(graph: Graph) -> None:
    future: Future = Future()
    waiting = threading.Event()
    graph.node.create_timer(0.0, waiting.set)

    def set_it() -> None:
        waiting.wait(LIMIT_S)
        future.set_result(True)

    thread = threading.Thread(target=set_it)
    thread.start()
    graph.executor.spin_until_future_complete(future)
    thread.join()
    assert future.result()


def spinning(executor: DirectExecutor, errors: list[Exception]) -> None:
    try:
        executor.spin()
    except Exception as error:
        errors.append(error)


@pytest.mark.parametrize("end", ["shutdown", "remove_node"])
def test_another_thread_may_end_it_in_the_middle_of_anything(ros_domain: int, end: str) -> None:
    for _ in range(20):
        graph, heard, errors = Graph(), threading.Event(), list[Exception]()
        publisher = graph.other.create_publisher(Int32, "numbers", 10)
        graph.node.create_subscription(Int32, "numbers", lambda message, heard=heard: heard.set(), 10)
        graph.other.create_timer(0.0005, partial(publisher.publish, Int32()))
        spins = threading.Thread(target=spinning, args=(graph.executor, errors))
        spins.start()
        assert heard.wait(LIMIT_S)
        if end == "remove_node":
            graph.executor.remove_node(graph.node)
            graph.node.destroy_node()
            heard.clear()
        graph.executor.shutdown()
        spins.join(LIMIT_S)
        assert not spins.is_alive() and not errors and not (end == "remove_node" and heard.is_set())
        graph.close()


def test_who_ends_it_waits_for_a_callback_but_no_longer_than_wanted(graph: Graph) -> None:
    begun, goes_on, errors = threading.Event(), threading.Event(), list[Exception]()

    def waits() -> None:
        begun.set()
        assert goes_on.wait(LIMIT_S)

    graph.node.create_timer(0.001, waits)
    spins = threading.Thread(target=spinning, args=(graph.executor, errors))
    spins.start()
    assert begun.wait(LIMIT_S)
    assert not graph.executor.shutdown(timeout_sec=0.0)
    goes_on.set()
    assert graph.executor.shutdown()
    spins.join(LIMIT_S)
    assert not spins.is_alive() and not errors


def test_a_callback_may_spin(graph: Graph) -> None:
    inside: list[str] = []
    group = ReentrantCallbackGroup()
    client = graph.node.create_client(Trigger, "ask", callback_group=group)
    graph.other.create_service(Trigger, "ask", lambda request, response: response)
    graph.spin_until(client.service_is_ready)

    def spin() -> None:
        timer.cancel()
        future = client.call_async(Trigger.Request())
        while not future.done():
            graph.executor.spin_once(timeout_sec=0.01)
        inside.append("answered")

    timer = graph.node.create_timer(0.0, spin)
    graph.spin_until(lambda: inside)


def test_a_context_that_ends_ends_the_spinning(graph: Graph) -> None:
    graph.node.create_timer(0.0, graph.context.try_shutdown)
    with pytest.raises(ExternalShutdownException):
        graph.spin_until(lambda: False)
