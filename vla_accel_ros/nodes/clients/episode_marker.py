"""Marks episodes in the bag of a robot's recorder, by its services."""

from __future__ import annotations

import time

from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

from vla_accel_ros.nodes.clients.client_node import ClientNode
from vla_accel_ros.nodes.service_calls import call, is_there, sentence
from vla_accel_ros.recording.marks import EVENTS

RECORDER = "recorder"
ANSWER_S = 10.0


class EpisodeMarker(ClientNode):
    """Talks to the node recorder of a namespace."""

    def __init__(self, namespace: str = "") -> None:
        super().__init__(namespace)
        create = self._node.create_client
        self._events = {event: create(Trigger, f"{RECORDER}/{event}") for event in EVENTS}
        self._parameters = create(SetParameters, f"{RECORDER}/set_parameters")

    def found(self, timeout_s: float) -> bool:
        """Return whether the recorder is there, configured, within a time."""
        end_s = time.monotonic() + timeout_s
        clients = (*self._events.values(), self._parameters)
        return all(is_there(client, end_s - time.monotonic()) for client in clients)

    def set_task(self, task: str) -> None:
        """Give the episodes that begin from now on a task. Raises TimeoutError, or ValueError if refused."""
        request = SetParameters.Request(parameters=[Parameter("task", value=task).to_parameter_msg()])
        response = call(self._node, self._parameters, request, ANSWER_S, self._wait, once=False)
        if not response.results[0].successful:
            raise ValueError(response.results[0].reason)

    def mark(self, event: str) -> str:
        """Mark one of EVENTS; return the recorder's sentence. Raises TimeoutError, or ValueError if
        refused."""
        client = self._events[event]
        return sentence(call(self._node, client, Trigger.Request(), ANSWER_S, self._wait, once=True))
