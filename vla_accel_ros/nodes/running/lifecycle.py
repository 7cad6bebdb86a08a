"""A lifecycle node whose transitions cannot fail silently, and which can start itself.

rclpy swallows exceptions of a transition callback. Here a subclass writes plain `configure`, `activate`,
`deactivate` and `release`, which may raise. ValueError, TypeError and OSError are refusals (a wrong file or
parameter: one sentence in the log, FAILURE, the state stays). Anything else is a fault (traceback in the log,
ERROR, everything released). Self-start calls the transitions from a timer of the node's own executor, so it
needs neither a second thread nor a service call to itself, and a respawned process comes back without help.
The node publishes its configuration on the latched topic `parameters`.
"""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from functools import partial

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType, JumpThreshold
from rclpy.duration import Duration
from rclpy.exceptions import InvalidHandle
from rclpy.lifecycle import LifecycleNode, LifecyclePublisher, LifecycleState, TransitionCallbackReturn
from rclpy.qos import QoSProfile
from std_msgs.msg import String

from vla_accel_ros.control.following.clock_watch import ClockWatch
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.brief import brief
from vla_accel_ros.nodes.declare import declare, value
from vla_accel_ros.nodes.diagnostics import ERROR, OK, Reporter, status
from vla_accel_ros.nodes.instruction_topic import TOPIC, SubscriptionEventCallbacks, subscriptions
from vla_accel_ros.nodes.params.parameter import Parameter
from vla_accel_ros.nodes.running.brief_log import BriefLogs
from vla_accel_ros.nodes.running.shutdown import fatal
from vla_accel_ros.nodes.timeline import NodeTimeline
from vla_accel_ros.timeline import TIMELINE

_REFUSALS = (ValueError, TypeError, OSError)


class ManagedNode(BriefLogs, LifecycleNode):
    """Base of the lifecycle nodes; subclasses override the eight hooks below."""

    def __init__(self, name: str, table: Iterable[Parameter], line: str = "") -> None:
        """line: of diagnostics that says why the node is not active; by default its name."""
        super().__init__(name)
        declare(self, table, lambda: self._state_machine.current_state[1] == "unconfigured")
        self.configured, self.active, self._clean = False, False, True
        self._clock_watch: ClockWatch | None = None  # from activation until it has been deactivated
        # Set by the process; free_memory is called after cleanup, and before configure, of which one may have
        # failed before.
        self.on_configured: Callable[[], object] = _nothing
        self.free_memory: Callable[[], object] = _nothing
        self.timeline = NodeTimeline(self)
        self.jumped_ns = 0  # how far ROS time was set last
        self._closing: list[Callable[[], object]] = []
        self.trouble = ""  # the sentence of the last refused or failed transition, for diagnostics
        self._line, self.reporter = line or name, Reporter(self, self._statuses)
        self._jumps = self.get_clock().create_jump_callback(
            JumpThreshold(
                min_forward=Duration(seconds=1), min_backward=Duration(nanoseconds=-1), on_clock_change=True
            ),
            post_callback=lambda jump: self._jumped(jump.delta.nanoseconds),
        )
        if value(self, "autostart"):
            # A steady clock: with use_sim_time the node must come up before /clock does.
            self._autostart = self.create_timer(0.01, self._start_oneself, clock=_steady())

    def configure(self) -> None:
        """Load and check everything, create publishers and subscriptions."""

    def activate(self) -> None:
        """Start to act."""

    def deactivate(self) -> None:
        """Stop acting; the publishers still work during this call."""

    def release(self) -> None:
        """Free what configure took, apart from topics, services and timers; also after it failed half way."""

    def finish(self) -> None:
        """The node was shut down cleanly, and does nothing more."""

    def hopeless(self, error: Exception) -> str:
        """Why no transition can recover from this error, empty if one may; otherwise the process ends."""
        return ""

    def cannot_start(self) -> None:
        """It could not start itself; `trouble` says why."""

    def statuses(self) -> Iterable[DiagnosticStatus]:
        """Lines of diagnostics while it is active."""
        return ()

    def clock_jumped(self) -> None:
        """ROS time went back, or more than a second forward: forget everything that carries a stamp.

        It is called while the node is configured, before any callback of `listen` or `every` sees the new
        time.
        """

    def end(self, clean: bool = True) -> None:
        """Go through the shutdown transition, unless a lifecycle manager has done that already.

        clean: False after a fault, so that the next process knows that this one did not end by itself.
        """
        self._clean = clean
        if self._state_machine.current_state[1] != "finalized":
            self.trigger_shutdown()

    def output(self, kind: type, topic: str, profile: QoSProfile) -> LifecyclePublisher:
        """A publisher that is silent unless the node is active; closed with `release`."""
        publisher = self.create_lifecycle_publisher(kind, topic, profile)
        self._closing.append(partial(self.destroy_lifecycle_publisher, publisher))
        return self.timeline.published(publisher, kind)

    def listen(
        self,
        kind: type,
        topic: str,
        callback: Callable,
        profile: QoSProfile,
        events: SubscriptionEventCallbacks | None = None,
        *,
        raw: bool = False,
    ) -> None:
        """A subscription, closed with `release`. Parameters may override the QoS of sensor streams."""
        options = qos.overridable() if profile is qos.SENSOR else None
        own_profile = copy(profile)  # rclpy writes overrides by parameters into the given profile
        heard = partial(self._heard, self.timeline.heard(callback, kind, topic))
        subscription = self.create_subscription(
            kind, topic, heard, own_profile, raw=raw, qos_overriding_options=options, event_callbacks=events
        )
        self._closing.append(partial(self.destroy_subscription, subscription))

    def listen_to_instructions(self, take: Callable) -> None:
        """Both subscriptions of the topic `instruction`, closed with `release`."""
        for callback, profile, events in subscriptions(take):
            self.listen(String, TOPIC, callback, profile, events)

    def serve(self, kind: type, name: str, callback: Callable) -> None:
        """A service, closed with `release`. A coroutine may wait for the results of other callbacks; if the
        service is closed meanwhile, nobody gets its response."""
        waits = inspect.iscoroutinefunction(callback)
        group = ReentrantCallbackGroup() if waits else None
        looked = self._coroutine_heard if waits else self._heard
        callback = callback if waits else self.timeline.called(callback, "service")
        service = self.create_service(kind, name, partial(looked, callback), callback_group=group)
        if waits:
            service.send_response = partial(_send_response, service.send_response)
        self._closing.append(partial(self.destroy_service, service))

    def every(self, period_s: float, callback: Callable[[], None]) -> None:
        """Call this periodically while active, by a steady clock; closed with `release`."""
        callback = self.timeline.called(callback, "timer")
        timer = self.create_timer(period_s, partial(self._if_active, callback), clock=_steady())
        self._closing.append(partial(self.destroy_timer, timer))

    def on_release(self, callback: Callable[[], object]) -> None:
        """Call this on `release`, before everything that was opened earlier is closed."""
        self._closing.append(callback)

    def now_ns(self) -> int:
        """ROS time in nanoseconds."""
        return self.get_clock().now().nanoseconds

    def clock_was_set(self) -> bool:
        """Whether ROS time was set during the present callback; `clock_jumped` comes after it."""
        watch = None if self.get_clock().ros_time_is_active else self._clock_watch
        return watch is not None and watch.was_set()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        result = self._attempt(
            "configure",
            self.free_memory,
            self.configure,
            self._tell_parameters,
            lambda: super(ManagedNode, self).on_configure(state),
            self.on_configured,
        )
        self.configured = result == TransitionCallbackReturn.SUCCESS
        return result

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        def activate() -> None:
            self._clock_watch = ClockWatch(self.now_ns)
            super(ManagedNode, self).on_activate(state)  # opens the publishers
            self.activate()
            self.active = True

        return self._attempt("activate", activate)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._attempt("deactivate", lambda: self._rest(state))

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._attempt(
            "clean up", self._close, lambda: super(ManagedNode, self).on_cleanup(state), self.free_memory
        )

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._attempt("shut down", lambda: self._rest(state), self._close, self._finish)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._attempt("recover", lambda: self._rest(state), self._close)

    def _tell_parameters(self) -> None:
        """Publish the configuration: {"node": its name, "parameters": all of them}."""
        publisher = self.create_publisher(String, "parameters", qos.LATCHED)
        self.on_release(partial(self.destroy_publisher, publisher))
        declared = self.get_parameters_by_prefix("")
        values = {name: parameter.value for name, parameter in declared.items()}
        configuration = {"node": self.get_fully_qualified_name(), "parameters": values}
        publisher.publish(String(data=json.dumps(configuration, sort_keys=True, default=str)))

    def _finish(self) -> None:
        if self._clean:
            self.finish()

    def _statuses(self) -> Iterable[DiagnosticStatus]:
        if self.active:
            return self.statuses()
        state = self.trouble or ("not active" if self.configured else "not configured")
        return [status(self._line, ERROR if self.trouble else OK, state)]

    def _close(self) -> None:
        self.configured = False
        while self._closing:
            self._closing.pop()()
        self.release()

    def _heard(self, callback: Callable, *messages: object) -> object:
        self.look_at_clock()
        return callback(*messages)

    async def _coroutine_heard(self, callback: Callable, *messages: object) -> object:
        self.look_at_clock()
        return await callback(*messages)

    def _if_active(self, callback: Callable[[], None]) -> None:
        if self.active:
            self._heard(callback)

    def look_at_clock(self) -> None:
        """Notice whether ROS time was set, before anything is decided by it."""
        jump_ns = 0 if self._clock_watch is None else self._clock_watch.jump_ns()
        if jump_ns and not self.get_clock().ros_time_is_active:
            self._jumped(jump_ns)

    def _rest(self, state: LifecycleState) -> None:
        try:
            self.look_at_clock()
            if self.active:
                self.active = False
                self.deactivate()
        finally:
            self._clock_watch = None
            super().on_deactivate(state)

    def _attempt(self, what: str, *steps: Callable[[], object]) -> TransitionCallbackReturn:
        try:
            for step in steps:
                step()
        except _REFUSALS as error:
            self.trouble = brief(f"cannot {what}: {error}")
            self.get_logger().error(self.trouble)
            self.get_logger().debug(traceback.format_exc())
            if what == "configure":
                self._close()
            return TransitionCallbackReturn.FAILURE
        except Exception as error:
            self.trouble = brief(f"cannot {what}: {type(error).__name__}: {error}")
            self.get_logger().error(f"{self.trouble}\n{traceback.format_exc()}")
            if reason := self.hopeless(error):
                fatal(reason)
            return TransitionCallbackReturn.ERROR
        self.trouble = ""
        return TransitionCallbackReturn.SUCCESS

    def _start_oneself(self) -> None:
        self._autostart.cancel()
        for trigger in (self.trigger_configure, self.trigger_activate):
            if trigger() != TransitionCallbackReturn.SUCCESS:
                self.cannot_start()
                return

    def _jumped(self, by_ns: int) -> None:
        self.get_logger().warning(f"ROS time jumped by {by_ns * 1e-9:.3f} s: starting afresh")
        self.jumped_ns = by_ns
        TIMELINE.instant("clock", f"ROS time jumped by {by_ns * 1e-9:.3f} s")
        if self.configured:
            self.clock_jumped()


def _send_response(send: Callable[..., None], *given: object) -> None:
    with suppress(InvalidHandle):  # the service was closed
        send(*given)


def _nothing() -> None:
    pass


def _steady() -> Clock:
    return Clock(clock_type=ClockType.STEADY_TIME)
