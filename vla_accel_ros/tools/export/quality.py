"""What is wrong with a recording, episode by episode: images that repeat, come late or are absent, joints
that stand although they are commanded to move, and time in which the robot was held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vla_accel_ros.recording.jumps import parts
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.tools.export.streams import Streams

GAP = 1.5
"""Of a camera's median interval; a longer one is a gap."""
FROZEN_S, FROZEN = 0.3, 0.05
"""A frozen joint reports one position for so long while its command moves by so much (rad or m)."""
_STEP_NS, _STEPS = 10_000_000, 200_000
"""Between two looks at commands and state, of which a long recording has so many at most."""


@dataclass(frozen=True)
class Quality:
    """Of one episode. name: its number and outcome. seconds: its length. faults: a phrase each, with
    figures."""

    name: str
    seconds: float
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}, {self.seconds:.1f} s: {'; '.join(self.faults) or 'nothing wrong'}"


def report(path: Path, robot: str = "") -> list[Quality]:
    """Return the qualities of a bag's episodes. Raises ValueError as Streams does."""
    return [quality for part in parts(Bag(path)) for quality in qualities(Streams(part, robot=robot))]


def qualities(streams: Streams) -> list[Quality]:
    """Return one Quality for each marked episode, or one for all where nobody marked any."""
    first_ns, last_ns = streams.extent_ns
    extents = [("all", first_ns, last_ns)]
    if streams.marked:
        extents = [
            (f"episode {number}, {each.outcome}", each.begin_ns, each.end_ns)
            for number, each in enumerate(streams.episodes, 1)
        ]
    return [_quality(streams, name, max(a, first_ns), min(b, last_ns)) for name, a, b in extents]


def _quality(streams: Streams, name: str, begin_ns: int, end_ns: int) -> Quality:
    def within(times_ns: Sequence[int]) -> np.ndarray:
        times = np.array(times_ns, np.int64)
        return times[(times >= begin_ns) & (times <= end_ns)]

    faults = []
    for camera, images in streams.images.items():
        stamps = within(images)
        intervals = np.diff(stamps)
        usual = float(np.median(intervals)) if len(intervals) else 0.0
        counts = {
            "repeat the one before": len(within(streams.repeated[camera])),
            "came late": len(within(streams.late[camera])),
            "came after a gap": int((intervals > GAP * usual).sum()),
        }
        phrases = [f"{count} {fault}" for fault, count in counts.items() if count]
        if phrases or not len(stamps):
            faults.append(f"camera {camera}: of {len(stamps)} images {', '.join(phrases) or 'none came'}")
    step_ns = max(_STEP_NS, (end_ns - begin_ns) // _STEPS)
    grid = np.arange(begin_ns, end_ns + 1, step_ns)
    commands = streams.commanded(grid)
    for column, joint in enumerate(streams.contract.joint_names):
        frozen = _frozen(*streams.samples(joint), grid, commands[:, column])
        if frozen:
            faults.append(f"joint {joint} {frozen}")
    held_s = float(streams.held(grid).sum()) * step_ns * 1e-9
    if held_s:
        faults.append(f"held for {held_s:.1f} s")
    return Quality(name, max(0, end_ns - begin_ns) * 1e-9, tuple(faults))


def _frozen(times_ns: np.ndarray, positions: np.ndarray, grid: np.ndarray, commands: np.ndarray) -> str:
    """Return words about the longest time in which a joint reports one position while its command moves."""
    rows = (times_ns >= grid[0]) & (times_ns <= grid[-1]) if len(grid) else np.zeros(len(times_ns), bool)
    times, values = times_ns[rows], positions[rows]
    if not len(times):
        return "has no state"
    changes = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values) - 1]
    longest = int(np.argmax(np.diff(times[changes])))
    begin, end = times[changes[longest]], times[changes[longest + 1]]
    commanded = commands[(grid >= begin) & (grid <= end)]
    commanded = commanded[np.isfinite(commanded)]
    if (end - begin) * 1e-9 < FROZEN_S or not len(commanded) or np.ptp(commanded) < FROZEN:
        return ""
    stands = f"reports {values[changes[longest]]:.3f} for {(end - begin) * 1e-9:.1f} s"
    return f"{stands}, while it is commanded over {np.ptp(commanded):.2f}"
