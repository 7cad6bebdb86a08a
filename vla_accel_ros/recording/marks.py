"""Episodes that a person marks while a bag is recorded: when each begins, how it ends, what its task is.

A mark is a String on the topic `episode` of the bag, such as {"event": "start", "task": "fold a cloth"}. The
recorder and whoever reads its bag follow the same rules: a start, then success, failure, stop (no outcome) or
discard. An outcome may also be given, or corrected, after the end, until the next start. An episode that
nobody ends, ends with the bag.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace

TOPIC = "episode"
SUCCESS, FAILURE, UNLABELED = "success", "failure", "unlabeled"
"""Outcomes, as in the results of rosetta's ManageEpisode."""
OUTCOMES = (SUCCESS, FAILURE, UNLABELED)
EVENTS = ("start", SUCCESS, FAILURE, "stop", "discard")
OPEN_NS = 2**63 - 1


@dataclass(frozen=True)
class MarkedEpisode:
    """begin_ns, end_ns: in ROS time, OPEN_NS if it was not ended. outcome: one of OUTCOMES. task: may be
    empty."""

    begin_ns: int
    end_ns: int = OPEN_NS
    outcome: str = UNLABELED
    task: str = ""


class Marks:
    """The marked episodes of a recording, without those that were discarded, in order."""

    def __init__(self) -> None:
        self.episodes: list[MarkedEpisode] = []
        self._discarded = False

    @property
    def open(self) -> bool:
        """Whether an episode has begun and not ended."""
        return bool(self.episodes) and self.episodes[-1].end_ns == OPEN_NS

    def mark(self, event: str, time_ns: int, task: str = "") -> str:
        """Take one of EVENTS; return a sentence about it. Raises ValueError if it does not fit now."""
        number = len(self.episodes)
        if event not in EVENTS:
            raise ValueError(f"the event is {event!r}: give one of {', '.join(EVENTS)}")
        if event == "start":
            if self.open:
                raise ValueError(f"no start before episode {number} ends: mark {', '.join(EVENTS[1:])}")
            self.episodes.append(MarkedEpisode(time_ns, task=task))
            self._discarded = False
            return f"episode {number + 1} begins: {task or 'its task is the instruction'}"
        if not self.open and (not number or self._discarded or event == "stop"):
            raise ValueError(f"{event} fits no episode: mark start first")
        last = self.episodes.pop()
        end_ns = min(last.end_ns, time_ns)
        if event == "discard":
            self._discarded = True
            return f"episode {number} is discarded"
        outcome = event if event in OUTCOMES else UNLABELED
        self.episodes.append(replace(last, end_ns=end_ns, outcome=outcome))
        return f"episode {number}: {outcome}, {(end_ns - last.begin_ns) * 1e-9:.1f} s"

    def read(self, text: str, time_ns: int) -> None:
        """Take a mark of a bag; ignore what is none, or does not fit."""
        with suppress(ValueError, TypeError, AttributeError):
            fields = json.loads(text)
            self.mark(fields["event"], time_ns, str(fields.get("task", "")))


def text_of(event: str, task: str = "") -> str:
    """The text of a mark."""
    return json.dumps({"event": event, "task": task} if event == "start" else {"event": event})
