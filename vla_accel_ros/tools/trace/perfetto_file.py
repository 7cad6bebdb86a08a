"""Writes timelines as a Perfetto trace: a group for each process, with a track for each lane, loop and topic.

Slices of one track must nest. Those that overlap otherwise (action requests of a staggered policy) get a
second row, "loop action 2". Flows are arrows from the image through every slice of its frame. Times are those
of the monotonic clock; a clock snapshot maps them to ROS time. Open the file in ui.perfetto.dev or with the
trace_processor.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vla_accel_ros.timeline import Event, Recorded

_SEQUENCE = 1
_PROTOS = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"


def write(path: Path, records: Sequence[Recorded]) -> int:
    """Write the trace; return its number of events. records: all in one clock (`merged`).

    Raises RuntimeError if the package perfetto is not installed, OSError if the file cannot be written.
    """
    protos = _needed()
    times = Counter(flow for record in records for event in record.events for flow in set(event.flows))
    flows = {flow for flow, count in times.items() if count > 1}  # an arrow has two ends
    uuids = iter(range(1, 1 << 62))
    packets: list[Any] = [_clocks(protos, records[0])] if records else []
    timed: list[tuple[tuple[int, int, int], Any]] = []
    for number, record in enumerate(records, 1):
        group = next(uuids)
        packets.append(_process(protos, group, number, record))
        for name, events in _rows(record.events):
            track = next(uuids)
            packets.append(_track(protos, track, group, name))
            for event in events:
                timed += _slice(protos, track, event, flows)
    timed.sort(key=lambda flow: flow[0])
    trace = protos.Trace(packet=[*packets, *(packet for _, packet in timed)])
    path.write_bytes(trace.SerializeToString())
    return sum(len(record.events) for record in records)


def _needed() -> Any:
    try:
        return importlib.import_module(_PROTOS)
    except ImportError as error:
        raise RuntimeError(f"a trace needs the package perfetto ({error}): pip install perfetto") from error


def _clocks(protos: Any, record: Recorded) -> Any:
    """Return the packet that maps monotonic time to ROS time. BOOTTIME, the default clock of a trace, is set
    to monotonic time."""
    packet = protos.TracePacket(trusted_packet_sequence_id=_SEQUENCE)
    packet.sequence_flags = protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    clock = protos.BuiltinClock
    for number, now_ns in (
        (clock.BUILTIN_CLOCK_BOOTTIME, record.monotonic_ns),
        (clock.BUILTIN_CLOCK_MONOTONIC, record.monotonic_ns),
        (clock.BUILTIN_CLOCK_REALTIME, record.ros_ns),
    ):
        packet.clock_snapshot.clocks.add(clock_id=number, timestamp=max(now_ns, 0))
    return packet


def _process(protos: Any, uuid: int, number: int, record: Recorded) -> Any:
    packet = protos.TracePacket(trusted_packet_sequence_id=_SEQUENCE)
    descriptor = packet.track_descriptor
    descriptor.uuid = uuid
    descriptor.process.pid = number  # process ids of different containers may be equal
    descriptor.process.process_name = ", ".join(record.nodes)
    return packet


def _track(protos: Any, uuid: int, parent: int, name: str) -> Any:
    packet = protos.TracePacket(trusted_packet_sequence_id=_SEQUENCE)
    descriptor = packet.track_descriptor
    descriptor.uuid, descriptor.parent_uuid, descriptor.name = uuid, parent, name
    return packet


def _slice(
    protos: Any, track: int, event: Event, flows: set[int]
) -> Iterator[tuple[tuple[int, int, int], Any]]:
    """Yield an event's packets with their sort keys: by time, ends before begins, and of two that begin at
    once the longer first."""
    kinds = protos.TrackEvent
    packet = protos.TracePacket(timestamp=max(event.begin_ns, 0), trusted_packet_sequence_id=_SEQUENCE)
    begin = packet.track_event
    instant = event.end_ns <= event.begin_ns
    begin.type = kinds.TYPE_INSTANT if instant else kinds.TYPE_SLICE_BEGIN
    begin.track_uuid, begin.name = track, event.name
    begin.flow_ids.extend(flow & ((1 << 64) - 1) for flow in event.flows if flow in flows)
    if event.detail:
        begin.debug_annotations.add(name="detail", string_value=event.detail)
    if event.flows:
        begin.debug_annotations.add(name="image_stamp_ns", int_value=event.flows[0])
    yield (event.begin_ns, 1, event.begin_ns - event.end_ns), packet
    if not instant:
        packet = protos.TracePacket(timestamp=max(event.end_ns, 0), trusted_packet_sequence_id=_SEQUENCE)
        packet.track_event.type, packet.track_event.track_uuid = kinds.TYPE_SLICE_END, track
        yield (event.end_ns, 0, 0), packet


def _rows(events: Iterable[Event]) -> Iterator[tuple[str, list[Event]]]:
    """Yield the rows of each track, in which events nest; tracks sorted by name."""
    tracks: dict[str, list[Event]] = {}
    for event in events:
        tracks.setdefault(event.track, []).append(event)
    for name in sorted(tracks):
        rows: list[tuple[list[Event], list[int]]] = []
        for event in sorted(tracks[name], key=lambda e: (e.begin_ns, -e.end_ns)):
            _place(event, rows)
        for number, (row, _) in enumerate(rows, 1):
            yield name if number == 1 else f"{name} {number}", row


def _place(event: Event, rows: list[tuple[list[Event], list[int]]]) -> None:
    """Put an event into the first row where it begins after all others or lies within one."""
    for row, open_ns in rows:
        while open_ns and open_ns[-1] <= event.begin_ns:
            open_ns.pop()
        if not open_ns or open_ns[-1] >= event.end_ns:
            row.append(event)
            open_ns.append(event.end_ns)
            return
    rows.append(([event], [event.end_ns]))
