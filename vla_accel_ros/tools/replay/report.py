"""What a replay found, in a few lines."""

from __future__ import annotations

from collections import Counter

from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.tools.replay.again import Difference, Result


def lines(bag: Bag, counts: Counter[str], result: Result) -> list[str]:
    """The report. counts: of Moments."""
    rate = (
        f" in {result.seconds:.1f} s: {result.frames / result.seconds:.1f} frames/s" if result.frames else ""
    )
    unfinished = "" if bag.finished else ", which was not finished: read up to where it breaks off"
    found = [
        f"bag     {bag.path}{unfinished}",
        f"frames  {result.frames} replayed of {counts['observations']} observed{rate}",
    ]
    if counts["incomplete"]:
        found.append(f"        {counts['incomplete']} observations have images that are not in the bag")
    if counts["of no session"]:
        found.append(f"        {counts['of no session']} observations are of no session in the bag")
    if counts["chunks of no observation"]:
        found.append(f"        {counts['chunks of no observation']} chunks have no observation in the bag")
    found += _compared("chunks", result.chunks, result.different_chunks)
    if result.texts:
        found += _compared("texts", result.texts, result.different_texts)
    if not result.equal and result.notes:
        found.append("why     it may be " + "; ".join(result.notes))
    return found


def _compared(what: str, total: int, different: list[Difference]) -> list[str]:
    found = [f"{what:<8}{total - len(different)} of {total} equal"]
    if different:
        found.append(f"        the first that differs: {different[0].what}")
        largest = max(different, key=lambda one: one.size)
        if len(different) > 1 and largest.size > different[0].size:
            found.append(f"        the largest difference: {largest.what}")
    return found
