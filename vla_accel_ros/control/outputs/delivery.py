"""How long a trajectory takes to reach its controller, and therefore how much of the old motion it repeats.

A trajectory that arrives after the part of the old motion that it repeats makes the joints jump. So the time
from decision to execution is measured. The best source is the controller: since Humble, the state of a
joint_trajectory_controller says when the trajectory that it executes began (stamp - time_from_start), which
is the stamp of one that was sent. A state that still shows an older one says that the next has not arrived,
so a late delivery counts before it has arrived. Where no state is recognised, the middleware's
acknowledgement counts: it shows a slow network and a stalled process, but not what the controller does with
the message. Only that of all messages together can be asked for, so of messages that follow each other faster
than they are acknowledged none ever is, until chunks wait for a moment (`awaits_arrival`). `lead_s` follows
the 99th percentile: up at once and down slowly, since a host that was busy once will be busy again.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

WINDOW = 256
"""Number of deliveries that count: 25 s of chunks at 10 Hz."""
LOST_S = 2.0
"""A trajectory that was not executed by then counts as lost."""

_FALL_PER_S = 0.01
# time between two looks at the controller; a change may have happened at any time between them
_LOOK_S = 0.02
_LOOK_NS = 20_000_000
_SAME_NS = 5_000_000  # Humble stamps a state a little later than its time
_NEWS_S = 0.1  # how old a state may be
_STEP_S = 0.1
# How long messages may follow each other before one is seen to be acknowledged.
_UNSEEN_S = 0.08
_SILENT_NS = 2_000_000_000
_MOST = 64


class _Sent(NamedTuple):
    stamp_ns: int
    decided_ns: int
    published_ns: int


class Delivery:
    """The delivery to one controller. Use it from one thread at a time; times are ns of the ROS clock.

    lead_s: expected, and the lower bound. lead_max_s: the upper bound; beyond it `trouble` says so.

    Attributes for diagnostics: `lead_s` (adapted) and `lost` (trajectories that were never executed).
    """

    def __init__(self, lead_s: float, lead_max_s: float) -> None:
        self._least_s, self._most_s = lead_s, max(lead_s, lead_max_s)
        self._took_s: deque[float] = deque(maxlen=WINDOW)
        self._recognised = False
        self.lead_s, self.lost = lead_s, 0
        self.forget()

    def forget(self) -> None:
        """Stop waiting for what was sent before: at activation, and when the clock has jumped."""
        # not executed as far as the controller says, oldest first
        self._unseen: deque[_Sent] = deque(maxlen=_MOST)
        self._unacknowledged: _Sent | None = None  # the oldest
        self._last: _Sent | None = None
        self._executed_ns: int | None = None  # stamp of the last executed trajectory
        self._state_ns: int | None = None  # stamp of the newest recognised state
        self._looked_ns: int | None = None
        self._stepped_ns: int | None = None
        self._late_s, self._unsure = 0.0, False
        self._waited_for: _Sent | None = None
        self._waited_s = 0.0

    def sent(self, stamp_ns: int, decided_ns: int, published_ns: int) -> None:
        """A trajectory was sent. stamp_ns: stamp of its message's header."""
        sent = _Sent(stamp_ns, decided_ns, published_ns)
        self._unseen.append(sent)
        self._last = sent
        if self._unacknowledged is None:
            self._unacknowledged, self._looked_ns = sent, published_ns

    def executing(self, began_ns: int, state_ns: int) -> bool:
        """Take the controller's state: at state_ns it executed the trajectory that began at began_ns.

        Returns False if that trajectory was not sent from here and began after the last one that was
        executed, or the first one that was sent: others move the robot, or the controller holds by itself.
        """
        last_ns = self._state_ns
        if last_ns is not None and state_ns <= last_ns:
            return True
        match = min(self._unseen, key=lambda sent: abs(sent.stamp_ns - began_ns), default=None)
        if match is not None and _same(match.stamp_ns, began_ns):
            while True:  # a controller takes the newest it has; a skipped trajectory came at least as late
                sent = self._unseen.popleft()
                self._note(sent, sent.published_ns if last_ns is None else last_ns, state_ns)
                if sent is match:
                    break
            self._executed_ns, self._recognised, self._unsure = match.stamp_ns, True, False
        elif self._executed_ns is None or not _same(self._executed_ns, began_ns):
            if not self._recognised:
                return not self._unseen or began_ns <= self._unseen[0].stamp_ns
            return last_ns is not None and began_ns <= last_ns - _LOOK_NS
        while self._unseen and (state_ns - self._unseen[0].decided_ns) * 1e-9 > LOST_S:
            self._unseen.popleft()
            self.lost, self._unsure = self.lost + 1, True
        late_ns = state_ns - self._unseen[0].decided_ns if self._unseen else 0
        self._state_ns, self._late_s = state_ns, max(late_ns * 1e-9, 0.0)
        return True

    def overdue(self, now_ns: int) -> bool:
        """Whether a sent trajectory is still not executed, for longer than the motion allows. Whatever is
        sent meanwhile would come as late, on top of that. A lost trajectory is no longer waited for."""
        return self._waits(now_ns, self._oldest, self._most_s + _NEWS_S)

    def awaits_arrival(self, now_ns: int) -> bool:
        """Whether chunks should wait until everything sent is acknowledged, because none of it has been for
        some time."""
        return self._waits(now_ns, self._unacknowledged, _UNSEEN_S)

    def _waits(self, now_ns: int, sent: _Sent | None, longer_s: float) -> bool:
        """Whether it has waited for this trajectory for longer than that, and still does."""
        if sent is None or sent is not self._waited_for or _is_lost(sent, now_ns):
            return False
        return self._waited_s > longer_s

    @property
    def unsure(self) -> bool:
        """Whether the last trajectory was lost, so that only the controller knows what it executes."""
        return self._unsure and not self._unseen

    @property
    def seen(self) -> bool:
        """Whether the controller says that it executes the last trajectory."""
        return self._recognised and not self._unseen

    @property
    def _oldest(self) -> _Sent | None:
        """The oldest trajectory that is not known to be executed."""
        if self._state_ns is None:
            return self._unacknowledged
        return self._unseen[0] if self._unseen else None

    def awaits_acknowledgement(self, now_ns: int) -> bool:
        """Whether to ask the middleware for acknowledgements, because the controller reports nothing."""
        if self._state_ns is not None and now_ns - self._state_ns <= _SILENT_NS:
            self._unacknowledged = None
        return self._unacknowledged is not None

    def acknowledged(self, done: bool, now_ns: int) -> None:
        """Take whether everything sent is acknowledged by now; see `awaits_acknowledgement`."""
        sent, last, looked_ns = self._unacknowledged, self._last, self._looked_ns
        if sent is None or last is None or looked_ns is None:
            return
        since_ns, lost = sent.decided_ns, _is_lost(sent, now_ns)
        if not lost:  # the first of several may have been acknowledged long ago
            since_ns = min(max(since_ns, now_ns - round(_UNSEEN_S * 1e9)), last.decided_ns)
        if done and not lost:  # after that it is a dead listener that is no longer waited for
            self._note(sent._replace(decided_ns=since_ns), looked_ns, now_ns)
        self._late_s = 0.0 if done else max((now_ns - since_ns) * 1e-9, 0.0)
        self._unacknowledged, self._looked_ns = (None, None) if done else (sent, now_ns)

    @property
    def p99_s(self) -> float:
        """99th percentile of the last deliveries, or the present delay if that is longer."""
        durations_s = sorted(self._took_s) or [0.0]
        return max(durations_s[math.ceil(0.99 * len(durations_s)) - 1], self._late_s)

    @property
    def count(self) -> int:
        """Number of deliveries behind p99_s."""
        return len(self._took_s)

    @property
    def source(self) -> str:
        """What the delivery is measured by."""
        return "acknowledgement" if self._state_ns is None else "controller_state"

    def step(self, now_ns: int) -> float:
        """Adapt lead_s and return it."""
        target_s = min(max(self.p99_s, self._least_s), self._most_s)
        passed_s = 0.0 if self._stepped_ns is None else max(now_ns - self._stepped_ns, 0) * 1e-9
        self._stepped_ns = now_ns
        # While this process was not scheduled, it did not look at the controller either.
        is_same = self._waited_for is not None and self._waited_for is self._oldest
        self._waited_s = self._waited_s + min(passed_s, _STEP_S) if is_same else 0.0
        self._waited_for = self._oldest
        self.lead_s = max(target_s, self.lead_s - _FALL_PER_S * passed_s)
        return self.lead_s

    @property
    def trouble(self) -> str:
        """A sentence if delivery takes longer than the motion allows, else empty."""
        p99_s = self.p99_s
        if p99_s <= self._most_s:
            return ""
        return (
            f"a trajectory takes {p99_s:.3f} s until it is executed (p99 of {self.count}, by {self.source}), "
            f"more than lead_max_s = {self._most_s:.3f} s: joints may jerk when it arrives. Look for a busy "
            "host, a slow network or a controller that refuses it, or raise lead_max_s"
        )

    def _note(self, sent: _Sent, earliest_ns: int, latest_ns: int) -> None:
        """Record one delivery, which happened after earliest_ns and not after latest_ns."""
        earliest_s = (max(earliest_ns, sent.published_ns) - sent.decided_ns) * 1e-9
        latest_s = (latest_ns - sent.decided_ns) * 1e-9
        self._took_s.append(max(min(latest_s, earliest_s + _LOOK_S), 0.0))


def _is_lost(sent: _Sent, now_ns: int) -> bool:
    return (now_ns - sent.published_ns) * 1e-9 > LOST_S


def _same(a_ns: int, b_ns: int) -> bool:
    return abs(a_ns - b_ns) <= _SAME_NS
