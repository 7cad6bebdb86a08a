"""What bench/nodes_gpu.py makes of the timelines of nodes."""

from __future__ import annotations

import numpy as np
import pytest

from real_nodes.figures import figures, window
from vla_accel_ros.timeline import Event, Recorded

MS, S = 1_000_000, 1_000_000_000
AHEAD_NS = 1_000 * S
"""Of ROS time before the monotonic clock."""


def test_of_a_frame_the_nodes_own_timelines_tell_the_moments() -> None:
    """Two frames of two: one that is commanded 18 ms after its stamp, one that is dropped."""
    begin_ns = 5 * S
    stamp_ns = AHEAD_NS + begin_ns + 100 * MS
    request = (stamp_ns,)

    def at(ms: float) -> int:
        return begin_ns + 100 * MS + round(ms * MS)

    inference = (
        Event("camera left", "taken", at(2.0), at(2.0), request, str(2 * MS)),
        Event("lane main", "observe.prefill", at(3.0), at(8.0), request),
        Event("lane main", "act.denoise", at(8.5), at(13.0), request),
        Event("topic /action_chunk", "write", at(13.5), at(13.6), request),
        Event("topic /action_chunk", "write", at(23.5), at(23.6), request),
    )
    trajectory = (
        Event("topic /action_chunk", "read", at(14.0), at(17.0), request),
        Event("trajectory", "follow", at(14.2), at(17.0), request),
        Event("topic /commands", "publish", at(17.5), at(18.0), request),
        Event("topic /commands", "publish", at(19.5), at(20.0)),
    )
    records = [
        Recorded("a 1", ("/inference",), inference, begin_ns + 2 * S, begin_ns + 2 * S + AHEAD_NS),
        Recorded("a 2", ("/trajectory",), trajectory, begin_ns + 2 * S, begin_ns + 2 * S + AHEAD_NS),
    ]
    result = figures(
        [window(records, begin_ns, begin_ns + S)], np.array([stamp_ns, stamp_ns + 33 * MS]), "/commands"
    )
    assert result["vision"] == {"hz": 1.33, "frames": 2, "arrived": 1, "dropped": 1}
    assert result["image_to"]["command"] == {"p50_ms": 18.0, "p99_ms": 18.0, "max_ms": 18.0}
    assert result["image_to"]["chunk"]["p50_ms"] == 13.5 and result["without_command"] == 0
    assert result["chunks"] == {"hz": 2.0, "followed_hz": 1.0}
    assert result["commands"]["hz"] == 2.0 and result["commands"]["interval"]["max_ms"] == 2.0
    assert result["steps"]["image stamp to command"] == {"frames": 1, **result["image_to"]["command"]}


def test_a_window_is_what_every_node_still_knows() -> None:
    def record(oldest_ns: int, asked_ns: int) -> Recorded:
        events = tuple(Event("lane main", "act", t * S, t * S) for t in range(20))
        return Recorded("a 1", ("/inference",), events, asked_ns, asked_ns + AHEAD_NS, oldest_ns)

    period = window([record(0, 12 * S), record(4 * S, 9 * S)], 3 * S, 11 * S)
    assert (period.begin_ns, period.end_ns, period.ahead_ns, period.seconds) == (4 * S, 9 * S, AHEAD_NS, 5.0)
    assert period.records[0].events[0].end_ns == 4 * S
    with pytest.raises(ValueError, match="make --window shorter"):
        window([record(11 * S, 12 * S)], 3 * S, 11 * S)
