"""What the nodes of a running robot did recently, from their services `~/timeline`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from rclpy.client import Client

from vla_accel_msgs.srv import GetTimeline
from vla_accel_ros.nodes.clients.client_node import ClientNode
from vla_accel_ros.nodes.service_calls import ask_again
from vla_accel_ros.nodes.timeline import events_from_response
from vla_accel_ros.timeline import Event, Recorded

EXPECTED = ("inference", "trajectory")
_TYPE = "vla_accel_msgs/srv/GetTimeline"
_LATER_NS = (1 << 63) - 1


class Timelines(ClientNode):
    """Reads the timelines of a robot's nodes."""

    def read(
        self, seconds: float, timeout_s: float, expected: Sequence[str] = EXPECTED
    ) -> tuple[list[Recorded], list[str]]:
        """What each node of the robot did in the last seconds, and the names of expected nodes that did not
        answer. timeout_s: for finding those nodes, and for each answer.

        Raises TimeoutError, one sentence, if no node answers, and ValueError for an invalid answer.
        """
        end = time.monotonic() + timeout_s
        while not set(expected) <= set(services := self._services()) and time.monotonic() < end:
            self._executor.spin_once(timeout_sec=0.05)
        answers = [self._read(*service, seconds, timeout_s) for service in sorted(services.items())]
        records = [record for record in answers if record is not None]
        if not records:
            where = self._node.get_namespace()
            raise TimeoutError(
                f"no node in {where} sent its timeline within {timeout_s:g} s: start inference "
                "and trajectory there, or give --namespace and ROS_DOMAIN_ID of a robot where they run"
            )
        answered = {node.rpartition("/")[2] for record in records for node in record.nodes}
        return records, [name for name in expected if name not in answered]

    def _services(self) -> dict[str, str]:
        """The timeline services of the robot's nodes, by node name."""
        space = self._node.get_namespace().rstrip("/")
        services = {}
        for service, types in self._node.get_service_names_and_types():
            node, _, last = service.removeprefix(f"{space}/").rpartition("/")
            if _TYPE in types and last == "timeline" and service == f"{space}/{node}/timeline":
                services[node] = service
        return {node: service for node, service in services.items() if "/" not in node}

    def _read(self, node: str, service: str, seconds: float, timeout_s: float) -> Recorded | None:
        client = self._node.create_client(GetTimeline, service)
        try:
            # Its clock first: it may run on another machine.
            clocks = self._ask(client, timeout_s, since_ns=_LATER_NS)
            if clocks is None:
                return None
            since_ns, position, events = clocks.monotonic_ns - round(seconds * 1e9), 0, list[Event]()
            while True:
                page = self._ask(client, timeout_s, since_ns=since_ns, position=position)
                if page is None:
                    raise TimeoutError(f"{service} stopped answering: run `vla doctor`")
                events += events_from_response(page)
                if not page.more or page.next <= position:
                    break
                position = page.next
        finally:
            self._node.destroy_client(client)
        name = service.rpartition("/")[0]
        oldest_ns = max(since_ns, clocks.oldest_ns)
        return Recorded(clocks.process, (name,), tuple(events), clocks.monotonic_ns, clocks.ros_ns, oldest_ns)

    def _ask(self, client: Client, timeout_s: float, **fields: int) -> Any:
        return ask_again(partial(client.call_async, GetTimeline.Request(**fields)), timeout_s, self._wait)
