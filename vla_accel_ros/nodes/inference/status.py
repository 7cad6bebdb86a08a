"""The lines of the inference node in /diagnostics: its chunks, what guides them, how its loops keep time."""

from __future__ import annotations

from collections.abc import Iterable

from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_ros.control.chunking.guidance import Guiding
from vla_accel_ros.engine.loop import LoopStats
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.sensing.arrivals import Inputs

GUIDED = ("guided", "trained")


def of_observations(
    inputs: Inputs, instruction: str, newest_chunk_ns: int | None, errors: int
) -> DiagnosticStatus:
    """What chunks are waiting for, how old the newest is, and whether they are made fast enough."""
    wrong = inputs.waiting_for or inputs.slow
    values = {
        "chunk age [s]": "none yet" if newest_chunk_ns is None else (inputs.told_ns - newest_chunk_ns) * 1e-9,
        "chunks made [1/s]": inputs.chunks_per_s,
        "chunks needed [1/s]": inputs.chunks_per_s_needed,
        "instruction": instruction,
        "errors": errors,
    }
    return status("inference", WARN if wrong else OK, wrong or "running", values)


def of_chunking(guiding: Guiding, step_dt_s: float) -> DiagnosticStatus:
    """The measured delay, and how many chunks were guided, or why they were not."""
    chunking = guiding.chunking
    steps, counts = chunking.delay_steps(step_dt_s), dict(chunking.counts)
    values = {
        "delay [s]": "not measured yet" if chunking.delay_s is None else chunking.delay_s,
        "delay [steps]": "not measured yet" if steps is None else steps,
        **{how: counts.get(how, 0) for how in GUIDED},
        **{f"not guided: {why}": n for why, n in counts.items() if why not in GUIDED},
    }
    sentence = guiding.conflict or (f"not guided: {guiding.why_not}" if guiding.why_not else "guided")
    return status("chunking", WARN if guiding.conflict else OK, sentence, values)


def of_loops(loops: Iterable[LoopStats]) -> list[DiagnosticStatus]:
    """Rates, times and misses."""
    return [
        status(
            f"loop {stats.name}",
            OK,
            f"{stats.measured_hz:.1f} Hz, p99 {stats.p99_s * 1e3:.0f} ms",
            {
                "target [Hz]": stats.target_hz,
                "measured [Hz]": stats.measured_hz,
                "p50 [ms]": stats.p50_s * 1e3,
                "p99 [ms]": stats.p99_s * 1e3,
                "runs": stats.runs,
                "idle": stats.idle,
                "deadline misses": stats.misses,
            },
        )
        for stats in loops
    ]
