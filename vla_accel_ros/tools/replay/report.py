"""Words the result of a replay."""

from __future__ import annotations

from dataclasses import dataclass, field

from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.tools.replay.moments import Moments


@dataclass(frozen=True)
class Difference:
    """How a chunk or answer differs from the recorded one.

    text: a sentence; size: the largest difference in ROS units, nan for an answer.
    """

    text: str
    size: float


@dataclass
class Result:
    """chunks, texts: how many were compared; different_*: those that were not equal, in order. frames:
    replayed moments, which took `seconds`. notes: phrases on what has changed since the recording and may be
    the cause."""

    chunks: int = 0
    texts: int = 0
    frames: int = 0
    seconds: float = 0.0
    different_chunks: list[Difference] = field(default_factory=list)
    different_texts: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether every chunk and answer was equal."""
        return not (self.different_chunks or self.different_texts)


def report(bag: Bag, moments: Moments, result: Result) -> list[str]:
    """Return the lines of the report."""
    rate = (
        f" in {result.seconds:.1f} s: {result.frames / result.seconds:.1f} frames/s" if result.frames else ""
    )
    unfinished = "" if bag.finished else ", which was not finished: read up to where it breaks off"
    lines = [
        f"bag     {bag.path}{unfinished}",
        f"frames  {result.frames} replayed of {moments.counts['observations']} observed{rate}",
    ]
    lines += [f"        {reason}" for reason in moments.lacking]
    lines += _compared("chunks", result.chunks, result.different_chunks)
    if result.texts:
        lines += _compared("texts", result.texts, result.different_texts)
    if not result.equal and result.notes:
        lines.append("why     it may be " + "; ".join(result.notes))
    return lines


def _compared(kind: str, total: int, different: list[Difference]) -> list[str]:
    lines = [f"{kind:<8}{total - len(different)} of {total} equal"]
    if different:
        lines.append(f"        the first that differs: {different[0].text}")
        largest = max(different, key=lambda difference: difference.size)
        if len(different) > 1 and largest.size > different[0].size:
            lines.append(f"        the largest difference: {largest.text}")
    return lines
