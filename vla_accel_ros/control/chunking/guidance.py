"""When chunks are guided: as the side that executes them says, so that it is configured there alone.

Guidance is right only for a robot that executes chunks as they are (mode `rtc`), and only while it does. The
trajectory node tells both, and how late a chunk takes over there. Without its word nothing is guided, unless
`always`, for an executor that tells nothing; a choice that contradicts what it tells is said in a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from vla_accel_ros.control.chunking.rtc import RealTimeChunking

Wanted = Literal["auto", "always", "never"]
WANTED: tuple[Wanted, ...] = ("auto", "always", "never")


@dataclass(frozen=True)
class Execution:
    """What the side that executes chunks tells of itself.

    state: "running" while chunks move the robot, otherwise why they do not, in a word. mode: how they follow
    each other. lead_s: how long after its arrival a chunk changes the motion. beginning: another number, and
    the motion did not go on but began anew.
    """

    state: str
    mode: str
    lead_s: float
    beginning: int


class Guiding:
    """Turns guidance on and off by what is told. Calls may come from any one thread.

    chunking: its settings' delivery_s is to the other side, whose lead_s comes on top.
    wanted: auto guides when the other side's mode is rtc; always does so also when it tells nothing.
    unguided: why chunks of this engine cannot be guided, in a word; empty: they can.
    """

    def __init__(self, chunking: RealTimeChunking, wanted: Wanted = "auto", unguided: str = "") -> None:
        if wanted not in WANTED:
            raise ValueError(f"rtc = {wanted!r} is unknown: choose {' or '.join(WANTED)}")
        if unguided and wanted == "always":
            raise ValueError(
                f"rtc is always, but chunks that are {unguided} are begun before the one they would continue "
                "is finished, so nothing guides them: set rtc to auto"
            )
        self.chunking, self._wanted, self._unguided = chunking, wanted, unguided
        self._told: Execution | None = None
        self.restart()

    def restart(self) -> None:
        """Agree with nothing computed so far; what the other side told last still holds."""
        told, why_not = self._told, self.why_not
        if why_not:
            self.chunking.pause(why_not)
        else:
            self.chunking.resume(0.0 if told is None else told.lead_s)

    def told(self, execution: Execution) -> bool:
        """Take what the other side tells of itself; returns whether that is something else than before."""
        before, self._told = self._told, execution
        if execution == before:
            return False
        if before is not None and execution == replace(before, lead_s=execution.lead_s) and not self.why_not:
            self.chunking.lead(execution.lead_s)
        else:
            self.restart()
        return True

    @property
    def why_not(self) -> str:
        """Why chunks are not guided, in a word or two; empty when they are."""
        told = self._told
        if self._wanted == "never" or self._unguided:
            return self._unguided or "never"
        if told is None:
            return "" if self._wanted == "always" else "not told"
        if told.mode != "rtc" and self._wanted == "auto":
            return f"mode {told.mode}"
        return "" if told.state == "running" else told.state

    @property
    def conflict(self) -> str:
        """A sentence when the choice contradicts what the other side tells, else empty."""
        mode = self._told.mode if self._told is not None else None
        if mode == "rtc" and self._unguided:
            return (
                f"the trajectory node runs in mode rtc, which crosses nothing over, but chunks are "
                f"{self._unguided}, and nothing guides those: set its mode to blend"
            )
        if mode == "rtc" and self._wanted == "never":
            return (
                "rtc is never, but the trajectory node runs in mode rtc, which crosses nothing over: "
                "set rtc to auto"
            )
        if mode not in ("rtc", None) and self._wanted == "always":
            return (
                f"rtc is always, but the trajectory node runs in mode {mode}: set its mode to rtc, or rtc "
                "to auto"
            )
        return ""
