"""A single-threaded executor that calls timers, guard conditions and subscriptions directly.

For every callback rclpy's executor gathers all entities, makes a wait set of them and of the event handlers
of every publisher and subscription, and wakes itself once more: some 0.8 ms of the interpreter for a message,
30 ms in the scheduler of 100 robots. Joint states at 500 Hz then take half a core from the thread that drives
the GPU. This executor gathers the entities only when they change, and calls those at once. It leaves
services, clients, actions and coroutines to rclpy's executor, which gets a turn when one of them is ready.
Event handlers, such as that of an incompatible QoS, get theirs every EVENTS_S.

It reads a few private names of rclpy's executor. rclpy#1469 (Humble 3.3.21, Jazzy 7.1.9, Kilted 9.1.4,
Lyrical) renamed the tasks, and since rclpy#1510 rclpy's own `spin` passes by `spin_once`: both forms are
known here. An rclpy with yet other names runs its own executor. The log and /diagnostics say which one runs.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rclpy.context import Context
from rclpy.exceptions import InvalidHandle
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.subscription import Subscription
from rclpy.task import Future

try:
    from rclpy.event_handler import EventHandler
except ImportError:  # Humble
    from rclpy.qos_event import QoSEventHandler as EventHandler

EVENTS_S = 0.5
TASK_S = 0.001
"""Longest wait while a coroutine is suspended: rclpy polls its futures."""

_CANCELLED = getattr(rclpy_implementation, "TimerCancelledError", InvalidHandle)
_TASKS = ("_pending_tasks", "_tasks")
"""Tasks of rclpy's executor that have not ended: a dict by task since rclpy#1469, before it a list of (task,
entity, node)."""
_NEEDED = ("_guard", "_sigint_gc", "_is_shutdown")


class DirectExecutor(SingleThreadedExecutor):
    """Executes the callbacks of its nodes in the thread that spins: timers, guard conditions, subscriptions,
    then the rest. A timer's callback gets no TimerInfo. Any thread may remove a node or shut the executor
    down: that waits for the end of a turn."""

    def __init__(self, *, context: Context | None = None) -> None:
        self._changed = True  # entities are to be gathered; rclpy's __init__ may wake
        super().__init__(context=context)
        self._waited: _Waited | None = None
        self._others_s = 0.0  # when rclpy's executor gets its next turn, monotonic
        self._calling = False
        self._turn, self._claims = threading.RLock(), 0  # claims: threads that wait for the end of a turn
        self._tasks_name = next((name for name in _TASKS if hasattr(self, name)), "")
        self.direct = bool(self._tasks_name) and all(hasattr(self, name) for name in _NEEDED)
        """Whether it calls them itself."""
        # Not spin_once where there is both: that refuses a callback that spins, since rclpy#1510.
        self._rclpy_turn: Any = getattr(super(), "_spin_once_impl", super().spin_once)

    @property
    def description(self) -> str:
        """Which executor calls the callbacks: `direct`, or rclpy's and what that costs."""
        if self.direct:
            return "direct"
        return (
            "rclpy's own, at some 0.6 ms of the processor a message: the installed rclpy lacks the names "
            "that nodes/running/executor.py reads; report its version"
        )

    def spin(self) -> None:
        """Execute callbacks until the executor or its context is shut down."""
        while self._context.ok() and not self._is_shutdown:
            self.spin_once()

    def spin_until_future_complete(self, future: Future, timeout_sec: float | None = None) -> None:
        """Execute callbacks until the future is done, timeout_sec (None: no limit) is over, or the executor
        or its context is shut down."""
        future.add_done_callback(lambda _: self.wake())
        end = float("inf") if timeout_sec is None or timeout_sec < 0 else time.monotonic() + timeout_sec
        while self._context.ok() and not (future.done() or self._is_shutdown) and time.monotonic() <= end:
            self.spin_once(timeout_sec=end - time.monotonic())

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Wait at most timeout_sec (None or negative: EVENTS_S), then execute once all that is ready. Raises
        what a callback raises."""
        if self._claims:
            time.sleep(TASK_S)
        with self._turn:
            if not self._is_shutdown:
                self._spin_once(timeout_sec)

    def _spin_once(self, timeout_sec: float | None) -> None:
        if self._calling or not self.direct:  # a callback that spins: its callback group must wait
            self._rclpy_turn(
                EVENTS_S if timeout_sec is None or timeout_sec < 0 else min(timeout_sec, EVENTS_S)
            )
            return
        now_s = time.monotonic()
        if self._suspended() or now_s >= self._others_s:
            self._others_s = now_s + EVENTS_S
            self._rclpy_turn(0.0)
        wait_s = TASK_S if self._suspended() else max(0.0, self._others_s - time.monotonic())
        if timeout_sec is not None and timeout_sec >= 0:
            wait_s = min(wait_s, timeout_sec)
        timers, guards, subscriptions = self._wait(wait_s)
        self._calling = True
        try:
            for timer in timers:
                self._call(timer, _take_timer)
            for guard in guards:
                self._call(guard, _take_guard)
            for subscription in subscriptions:
                self._call(subscription, _take_message)
        finally:
            self._calling = False

    def wake(self) -> None:
        """Gather entities anew: nodes call this when they create or destroy one. From any thread."""
        self._changed = True
        super().wake()

    def add_node(self, node: Node) -> bool:
        self._changed = True
        return super().add_node(node)

    def remove_node(self, node: Node) -> None:
        self._end_turn(None)
        try:
            self._release()
            super().remove_node(node)
        finally:
            self._turn.release()

    def shutdown(self, timeout_sec: float | None = None) -> bool:
        if not self._end_turn(timeout_sec):
            return False
        try:
            self._release()
            return super().shutdown(timeout_sec)
        finally:
            self._turn.release()

    def _end_turn(self, timeout_sec: float | None) -> bool:
        """Wait until no other thread is in a turn, and keep it so until `_turn` is released; False after
        timeout_sec."""
        self._claims += 1
        try:
            self.wake()
            return self._turn.acquire(timeout=-1 if timeout_sec is None or timeout_sec < 0 else timeout_sec)
        finally:
            self._claims -= 1

    def _suspended(self) -> bool:
        """Whether a coroutine, or a function given to create_task, has not ended."""
        tasks = tuple(getattr(self, self._tasks_name))
        if self._tasks_name == "_tasks":
            tasks = tuple(task for task, _, _ in tasks)
        return not all(task.done() or task.cancelled() for task in tasks)

    def _wait(self, timeout_s: float) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Return the timers, guard conditions and subscriptions that are ready. If anything else is, rclpy's
        executor gets the next turn. Raises ExternalShutdownException if the context was shut down."""
        if not self._context.ok():
            raise ExternalShutdownException
        if self._changed or self._waited is None:
            self._release()
            self._changed = False
            own_guards = self._guard, self._sigint_gc
            self._waited = _Waited(self._context, self.get_nodes(), own_guards, self.can_execute)
            self._changed = self._changed or self._suspended()  # its callback group may be free next time
        self._waited.wait(timeout_s)
        if self._is_shutdown:
            return (), (), ()
        if not self._context.ok():
            raise ExternalShutdownException
        if self._waited.others_ready():
            self._others_s = 0.0
        guards = self._waited.ready("guard")
        for guard in guards:
            guard._executor_triggered = True  # the wait has reset it
        return self._waited.ready("timer"), guards, self._waited.ready("subscription")

    def _release(self) -> None:
        self._changed = True
        waited, self._waited = self._waited, None
        if waited is not None:
            waited.release()

    def _call(self, entity: Any, take: Callable[[Any], tuple[Any, ...] | None]) -> None:
        """Nothing else of a mutually exclusive callback group runs meanwhile."""
        if inspect.iscoroutinefunction(entity.callback):
            self._others_s = 0.0
            return
        group = entity.callback_group
        if not self.can_execute(entity) or not group.beginning_execution(entity):
            return
        try:
            try:
                with entity.handle:
                    arguments = take(entity)
            except (InvalidHandle, _CANCELLED):  # by a callback before it
                return
            if arguments is not None:
                entity.callback(*arguments)
        finally:
            group.ending_execution(entity)


class _Waited:
    """Entities of some nodes that their callback groups let run, and the rclpy wait set for them. None is
    destroyed before `release`."""

    def __init__(
        self,
        context: Context,
        nodes: Sequence[Node],
        guards: Sequence[Any],
        can_execute: Callable[[Any], bool],
    ) -> None:
        self._held: list[Any] = []
        self._context = self._hold(context.handle)
        self._entities = {
            kind: [
                entity
                for node in nodes
                for entity in getattr(node, f"{kind}s")
                if can_execute(entity) and self._hold(entity.handle)
            ]
            for kind in ("subscription", "guard", "timer", "client", "service")
        }
        self._own = [guard for guard in guards if guard is not None and self._hold(guard.handle)]
        self._actions = [
            waitable
            for node in nodes
            for waitable in node.waitables
            if not isinstance(waitable, EventHandler) and can_execute(waitable) and self._hold(waitable)
        ]
        more = [action.get_num_entities() for action in self._actions]
        entities = self._entities
        self._set = rclpy_implementation.WaitSet(
            len(entities["subscription"]) + sum(entity.num_subscriptions for entity in more),
            len(entities["guard"]) + len(self._own) + sum(entity.num_guard_conditions for entity in more),
            len(entities["timer"]) + sum(entity.num_timers for entity in more),
            len(entities["client"]) + sum(entity.num_clients for entity in more),
            len(entities["service"]) + sum(entity.num_services for entity in more),
            sum(entity.num_events for entity in more),
            context.handle,
        )
        add = {kind: getattr(self._set, f"add_{kind}") for kind in entities if kind != "guard"}
        add["guard"] = self._set.add_guard_condition
        self._adding = [(add[kind], entity.handle) for kind, group in entities.items() for entity in group]
        self._adding += [(add["guard"], guard.handle) for guard in self._own]
        self._by_address = {
            kind: {entity.handle.pointer: entity for entity in group}
            for kind, group in entities.items()
            if group
        }

    def wait(self, timeout_s: float) -> None:
        """Return when any entity is ready, or after timeout_s."""
        self._set.clear_entities()
        for add, handle in self._adding:
            add(handle)
        for action in self._actions:
            action.add_to_wait_set(self._set)
        self._set.wait(int(min(timeout_s, EVENTS_S) * 1e9))

    def ready(self, kind: str) -> list[Any]:
        """Those of a kind that the last wait found ready."""
        entities = self._by_address.get(kind)
        if entities is None:
            return []
        name: Any = "guard_condition" if kind == "guard" else kind
        return [entities[address] for address in self._set.get_ready_entities(name) if address in entities]

    def others_ready(self) -> bool:
        """Whether anything but a timer, a guard condition or a subscription is."""
        actions = [action.is_ready(self._set) for action in self._actions]
        return bool(self.ready("client") or self.ready("service") or any(actions))

    def release(self) -> None:
        """Let the entities be destroyed."""
        while self._held:
            self._held.pop().__exit__(None, None, None)

    def _hold(self, handle: Any) -> bool:
        try:
            handle.__enter__()
        except InvalidHandle:
            return False
        self._held.append(handle)
        return True


def _take_timer(timer: Any) -> tuple[()] | None:
    if timer.callback is None or not timer.handle.is_timer_ready():  # cancelled, reset or called meanwhile
        return None
    timer.handle.call_timer()
    return ()


def _take_guard(guard: Any) -> tuple[()] | None:
    guard._executor_triggered = False
    return None if guard.callback is None else ()


def _take_message(subscription: Any) -> tuple[Any, ...] | None:
    message = subscription.handle.take_message(subscription.msg_type, subscription.raw)
    if message is None:
        return None
    if not hasattr(subscription, "_callback_type"):  # Humble: callbacks get no MessageInfo
        return (message[0],)
    alone = subscription._callback_type is Subscription.CallbackType.MessageOnly
    return (message[0],) if alone else tuple(message)
