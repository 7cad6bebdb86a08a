"""Marks episodes in the bag of a robot's recorder, by its services."""

from __future__ import annotations

import time
from functools import partial

from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

from vla_accel_ros.nodes.clients.client_node import ClientNode
from vla_accel_ros.nodes.service_calls import answer
from vla_accel_ros.recording.marks import EVENTS

RECORDER = "recorder"
ANSWER_S = 10.0
_LOOK_S = 0.05


class EpisodeMarker(ClientNode):
    """Talks to the node recorder of a namespace."""

    def __init__(self, namespace: str = "") -> None:
        super().__init__(namespace)
        create = self._node.create_client
        self._events = {event: create(Trigger, f"{RECORDER}/{event}") for event in EVENTS}
        self._parameters = create(SetParameters, f"{RECORDER}/set_parameters")

    def found(self, timeout_s: float) -> bool:
        """Return whether the recorder is there, configured, within a time."""
        clients, end_s = (*self._events.values(), self._parameters), time.monotonic() + timeout_s

        def ready() -> bool:
            return all(client.service_is_ready() for client in clients)

        while not self._wait(ready, _LOOK_S) and time.monotonic() < end_s:
            pass  # a service that appears wakes nobody: look again
        return ready()

    def set_task(self, task: str) -> None:
        """Give the episodes that begin from now on a task. Raises TimeoutError, or ValueError if refused."""
        request = SetParameters.Request(parameters=[Parameter("task", value=task).to_parameter_msg()])
        ask = partial(self._parameters.call_async, request)
        response = answer(self._node, RECORDER, ask, ANSWER_S, self._wait, once=False)
        if response is None:
            raise TimeoutError(
                f"no answer from {self._parameters.srv_name} within {ANSWER_S:g} s: run `vla doctor`"
            )
        if not response.results[0].successful:
            raise ValueError(response.results[0].reason)

    def mark(self, event: str) -> str:
        """Mark one of EVENTS; return the recorder's sentence. Raises TimeoutError, or ValueError if
        refused."""
        client = self._events[event]
        ask = partial(client.call_async, Trigger.Request())
        response = answer(self._node, RECORDER, ask, ANSWER_S, self._wait, once=True)
        if response is None:
            raise TimeoutError(f"no answer from {client.srv_name} within {ANSWER_S:g} s: run `vla doctor`")
        if not response.success:
            raise ValueError(response.message)
        return str(response.message)
