"""A node's callbacks and publishes on the timeline of its process, and the service that returns it.

A message belongs to a frame if it has the image's capture time. A command does not; it belongs to the frame
whose chunk the node follows at the moment (`following`). The service `~/timeline` returns one page at a time,
so that it never keeps a node from its work for long.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rclpy.node import Node

from vla_accel_msgs.srv import GetTimeline
from vla_accel_ros.timeline import TIMELINE, Event, Flows, Page, flow, process_name

OF_FRAMES = frozenset(
    {"ActionChunk", "CompressedImage", "FrameHandle", "Image", "LanguageOutput", "Observed"}
)
"""Messages whose header has the capture time of an image."""
_STAMP = {0: struct.Struct(">iI"), 1: struct.Struct("<iI")}


class NodeTimeline:
    """The timeline of one node. flows: the frame that it follows at the moment."""

    def __init__(self, node: Node) -> None:
        self._node, self.flows = node, Flows()
        node.create_service(GetTimeline, "~/timeline", self._tell)

    def heard(self, callback: Callable[[Any], object], kind: type, topic: str) -> Callable[[Any], None]:
        """Wraps a subscription's callback so that it appears on the timeline."""
        track = f"topic {self._node.resolve_topic_name(topic)}"
        flows_of = _flows_of if kind.__name__ in OF_FRAMES else _none

        def timed(message: Any) -> None:
            begin_ns = TIMELINE.now_ns()
            try:
                callback(message)
            finally:
                TIMELINE.span(track, "callback", begin_ns, flows=flows_of(message))

        return timed

    def called(self, callback: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """Wraps a callback of a timer or a service (`kind`) so that it appears on the timeline."""
        name = getattr(getattr(callback, "func", callback), "__qualname__", "callback")
        track = f"{kind} {name}"

        def timed(*arguments: Any) -> Any:
            begin_ns = TIMELINE.now_ns()
            try:
                return callback(*arguments)
            finally:
                TIMELINE.span(track, "callback", begin_ns)

        return timed

    def published(self, publisher: Any, kind: type) -> Any:
        """Makes the publisher's messages appear on the timeline from now on; returns the publisher."""
        track, publish = f"topic {publisher.topic_name}", publisher.publish
        flows_of = _flows_of if kind.__name__ in OF_FRAMES else lambda message: self.flows

        def timed(message: Any) -> None:
            begin_ns = TIMELINE.now_ns()
            publish(message)
            if publisher.is_activated:  # otherwise it publishes nothing
                TIMELINE.span(track, "publish", begin_ns, flows=flows_of(message))

        publisher.publish = timed
        return publisher

    @contextmanager
    def following(self, stamp_ns: int) -> Iterator[None]:
        """A chunk of this image becomes motion: messages published in this context belong to its frame."""
        begin_ns, self.flows = TIMELINE.now_ns(), (flow(stamp_ns),)
        try:
            yield
        finally:
            TIMELINE.span("trajectory", "follow", begin_ns, flows=self.flows)
            self.flows = ()

    def _tell(self, request: GetTimeline.Request, response: GetTimeline.Response) -> GetTimeline.Response:
        page = TIMELINE.page(request.since_ns, request.position)
        response.process = process_name()
        response.monotonic_ns, response.ros_ns = time.monotonic_ns(), self._node.get_clock().now().nanoseconds
        return page_to_response(page, response)


def page_to_response(page: Page, response: GetTimeline.Response) -> GetTimeline.Response:
    """Write events into a response, each text only once."""
    events, texts = page.events, dict[str, int]()

    def places(of: Iterator[str]) -> array[int]:
        return array("I", [texts.setdefault(text, len(texts)) for text in of])

    response.oldest_ns, response.next, response.more = page.oldest_ns, page.next, page.more
    response.tracks = places(event.track for event in events)
    response.names = places(event.name for event in events)
    response.details = places(event.detail for event in events)
    response.texts = list(texts)
    response.begin_ns = array("q", [event.begin_ns for event in events])
    response.end_ns = array("q", [event.end_ns for event in events])
    response.flow_events = array("I", [i for i, event in enumerate(events) for _ in event.flows])
    response.flow_ids = array("q", [flow_id for event in events for flow_id in event.flows])
    return response


def events_from_response(response: GetTimeline.Response) -> list[Event]:
    """The events of a response. Raises ValueError, one sentence, if its lists do not fit each other."""
    columns = (response.tracks, response.names, response.details, response.begin_ns, response.end_ns)
    count, texts = len(response.tracks), response.texts
    fits = all(len(column) == count for column in columns)
    fits = fits and all(max(column, default=-1) < len(texts) for column in columns[:3])
    fits = fits and len(response.flow_ids) == len(response.flow_events)
    if not fits or max(response.flow_events, default=-1) >= count:
        raise ValueError(f"the timeline of {response.process} has lists that do not fit: update its package")
    flows: dict[int, list[int]] = {}
    for event_number, flow_id in zip(response.flow_events, response.flow_ids):
        flows.setdefault(event_number, []).append(flow_id)
    return [
        Event(texts[track], texts[name], begin_ns, end_ns, tuple(flows.get(i, ())), texts[detail])
        for i, (track, name, detail, begin_ns, end_ns) in enumerate(zip(*columns))
    ]


def _flows_of(message: Any) -> Flows:
    """The frame of a message whose first field is a header, or of a serialized one (bytes)."""
    if isinstance(message, bytes):
        if len(message) < 12:
            return ()
        sec, nanosec = _STAMP[message[1] & 1].unpack_from(message, 4)
    else:
        stamp = message.header.stamp
        sec, nanosec = stamp.sec, stamp.nanosec
    return (flow(sec * 1_000_000_000 + nanosec),)


def _none(message: Any) -> Flows:
    return ()
