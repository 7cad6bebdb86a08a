"""Decides when chunks are guided, by what the executing side says, so that it is configured only there.

Guidance is right only for a robot that executes chunks as they are (mode `rtc`), and only while it does. The
trajectory node reports both, and how late a chunk takes effect there. Without its report nothing is guided,
unless `always` is set for an executor that reports nothing. `conflict` says when a setting contradicts the
report.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vla_accel_ros.control.chunking.rtc import RealTimeChunking

WANTED = ("auto", "always", "never")


@dataclass(frozen=True)
class Execution:
    """What the side that executes chunks reports about itself.

    state: "running" while chunks move the robot, else one word that says why not. mode: how chunks follow
    each other. lead_s: how long after its arrival a chunk changes the motion. beginning: changes when motion
    started anew instead of going on.
    """

    state: str
    mode: str
    lead_s: float
    beginning: int


class Guiding:
    """Turns guidance on and off as the executing side reports. Use it from one thread at a time.

    chunking: its settings' delivery_s covers the way to the other side; that side's lead_s is added. wanted:
    auto guides when the other side's mode is rtc; always guides also when it reports nothing. unguided: a
    word that says why chunks of this engine cannot be guided; empty if they can.
    """

    def __init__(self, chunking: RealTimeChunking, wanted: str = "auto", unguided: str = "") -> None:
        if unguided and wanted == "always":
            raise ValueError(
                f"rtc is always, but {unguided} chunks cannot be guided, since each begins before the "
                "previous one is finished: set rtc to auto"
            )
        self.chunking, self._wanted, self._unguided = chunking, wanted, unguided
        self._told: Execution | None = None
        self.restart()

    def restart(self) -> None:
        """Agree with no chunk computed so far; the other side's last report still holds."""
        execution, why_not = self._told, self.why_not
        if why_not:
            self.chunking.pause(why_not)
        else:
            self.chunking.resume(0.0 if execution is None else execution.lead_s)

    def told(self, execution: Execution) -> bool:
        """Take a report of the other side; returns whether it differs from the one before."""
        previous, self._told = self._told, execution
        if execution == previous:
            return False
        if (
            previous is not None
            and execution == replace(previous, lead_s=execution.lead_s)
            and not self.why_not
        ):
            self.chunking.lead(execution.lead_s)
        else:
            self.restart()
        return True

    @property
    def why_not(self) -> str:
        """Why chunks are not guided, in one or two words; empty when they are."""
        execution = self._told
        if self._wanted == "never" or self._unguided:
            return self._unguided or "never"
        if execution is None:
            return "" if self._wanted == "always" else "not told"
        if execution.mode != "rtc" and self._wanted == "auto":
            return f"mode {execution.mode}"
        return "" if execution.state == "running" else execution.state

    @property
    def conflict(self) -> str:
        """A sentence if the setting contradicts the other side's report, else empty."""
        mode = self._told.mode if self._told is not None else None
        if mode == "rtc" and self._unguided:
            return (
                "the trajectory node runs in mode rtc, which does not crossfade, but "
                f"{self._unguided} chunks are not guided: set its mode to blend"
            )
        if mode == "rtc" and self._wanted == "never":
            return (
                "rtc is never, but the trajectory node runs in mode rtc, which does not crossfade: "
                "set rtc to auto"
            )
        if mode not in ("rtc", None) and self._wanted == "always":
            return (
                f"rtc is always, but the trajectory node runs in mode {mode}: set its mode to rtc, or rtc "
                "to auto"
            )
        return ""
