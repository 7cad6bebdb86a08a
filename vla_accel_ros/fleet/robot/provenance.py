"""What a robot's chunks and answers were made from, for recordings: its observations, and the engines it
heard of.

A chunk carries the stamp of its observation, and its answer names the replica. Both tables are bounded: old
observations and the engines of schedulers that are gone are forgotten.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np

from vla_accel_ros.engine.session import REPLICA, Session
from vla_accel_ros.fleet.protocol import EncodedObservation

_SENT, _SESSIONS = 64, 64


@dataclass(frozen=True)
class Seen:
    """An observation without its images. instruction: or the question. stamps_ns: by camera. state: float32
    [D], in the policy's units. session: id of the session that used it."""

    stamp_ns: int
    instruction: str
    stamps_ns: dict[str, int]
    state: np.ndarray
    session: str = ""


class Provenance:
    """The provenance of one robot's chunks. topics: image topic of each camera. own: the robot's own
    settings."""

    def __init__(self, topics: dict[str, str], own: dict[str, object]) -> None:
        self._topics, self._own = topics, own
        self._sent: OrderedDict[tuple[int, str], Seen] = OrderedDict()
        self._sessions: OrderedDict[str, str] = OrderedDict()

    def sent(self, seen: EncodedObservation) -> None:
        """Record an observation that was sent with a request."""
        words = seen.instruction
        self._sent[seen.stamp_ns, words] = Seen(seen.stamp_ns, words, dict(seen.stamps_ns), seen.state)
        while len(self._sent) > _SENT:
            self._sent.popitem(last=False)

    def told(self, session: Session) -> Session:
        """Record a session that a scheduler announced; return it with this robot's settings, cameras and
        topics. Raises ValueError, with one sentence, if its settings are malformed."""
        try:
            settings = json.loads(session.settings)
            replica = settings[REPLICA]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(
                f"fleet/session {session.id[:12]!r} has settings that name no {REPLICA}: "
                f"{session.settings[:80]!r}"
            ) from None
        self._sessions[str(replica)] = session.id
        while len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)
        return replace(
            session,
            settings=json.dumps({**settings, **self._own}, sort_keys=True),
            cameras=tuple(self._topics),
            topics=tuple(self._topics.values()),
        )

    def of(self, stamp_ns: int, words: str, replica: str) -> Seen | None:
        """Return what a chunk or answer with this stamp was made from; None if unknown. replica:
        "SCHEDULER/NAME"."""
        observed, session = self._sent.get((stamp_ns, words)), self._sessions.get(replica)
        return None if observed is None or session is None else replace(observed, session=session)
