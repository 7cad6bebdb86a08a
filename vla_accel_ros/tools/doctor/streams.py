"""Judge the watched streams: rates, pauses, stamps, clocks, joints, and whether they fit together.

The two usual faults look alike to a node: no images at all, and images lost by the transport. Stamps reveal a
third: the clock of another machine or of a simulator, by which everything is too old. All figures come from
`Watched`; nothing here reads a clock.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

import numpy as np

from vla_accel_ros.contract.checks.findings import Finding, error, ok, warning
from vla_accel_ros.contract.contract import Contract, Stream
from vla_accel_ros.control.following.reasons import listed
from vla_accel_ros.control.limits.joint_limits import JointLimits
from vla_accel_ros.sensing.arrivals import IMAGE_HINT, PROFILED_HINT, RING_HINT, Arrival, Watched

SLOW, FAST = 0.8, 1.5
AHEAD_S = 0.02
# A ROS time before 2001 is simulated: simulators and their bags start at zero.
_SIMULATED_NS = 1_000_000_000 * 10**9
# How far a measured position may exceed its limits, as a share of the range.
_SLACK = 0.05
_SYNCHRONISE = "synchronise the clocks of the machines (chrony or PTP), or have the driver stamp at capture"


def judge(contract: Contract, watched: Watched, lacks_profile: bool = True) -> list[Finding]:
    """Return all findings on the streams; an OK for each stream without a problem.

    lacks_profile: a node of the robot lacks the Fast DDS profile.
    """
    image_hint = IMAGE_HINT if lacks_profile else PROFILED_HINT
    findings: list[Finding] = []
    for camera in contract.cameras:
        hint = RING_HINT if camera.transport == "ring" else image_hint
        findings += _stream(f"camera/{camera.name}", camera, watched, hint)
    driver = "raise the rate of its broadcaster, or lower rate_hz in the contract"
    findings += _stream("joint_states", contract.joint_states, watched, driver)
    findings += _joints(contract, watched)
    findings += [warning("cameras", *_parts(mismatch)) for mismatch in watched.mismatches]
    return [*findings, *_together(contract, watched)]


def _stream(name: str, stream: Stream, watched: Watched, hint: str) -> list[Finding]:
    arrivals = watched.arrivals.get(name, [])
    refused = watched.refused.get(name, [])
    findings = [error(name, *_parts(refusal)) for refusal in dict.fromkeys(refused)]
    if not arrivals:
        fix = "look at the findings about its topic; is its driver publishing?"
        return findings or [error(name, f"nothing arrived on {stream.topic}", fix)]
    rate_hz, pause_s = _rate(arrivals, watched.ended_s)
    findings += _pace(name, stream, rate_hz, pause_s, hint) + _stamps(name, stream, arrivals)
    return findings or [ok(name, f"{rate_hz:.1f} Hz, {_age_s(arrivals) * 1e3:.1f} ms old on arrival")]


def _rate(arrivals: Sequence[Arrival], ended_s: float) -> tuple[float, float]:
    """Return messages a second from the first one to the end of watching, and the longest pause in
    seconds."""
    times = np.array([arrival.steady_s for arrival in arrivals] + [ended_s])
    span = times[-1] - times[0]
    return (len(arrivals) / span if span > 0 else 0.0), float(np.diff(times).max())


def _pace(name: str, stream: Stream, rate_hz: float, pause_s: float, hint: str) -> list[Finding]:
    if pause_s > stream.max_age_s:
        fact = f"paused for {pause_s:.2f} s at {rate_hz:.1f} Hz, max_age_s allows {stream.max_age_s:g}"
        return [error(name, f"{fact}, so the robot would stop", hint)]
    if rate_hz < SLOW * stream.rate_hz:
        return [warning(name, f"arrives at {rate_hz:.1f} Hz instead of {stream.rate_hz:g}", hint)]
    if rate_hz > FAST * stream.rate_hz:
        fact = f"arrives at {rate_hz:.1f} Hz, the contract says {stream.rate_hz:g}"
        return [warning(name, fact, "fix rate_hz in the contract, or the rate of the driver")]
    return []


def _age_s(arrivals: Sequence[Arrival]) -> float:
    return float(np.median([arrival.now_ns - arrival.stamp_ns for arrival in arrivals])) * 1e-9


def _stamps(name: str, stream: Stream, arrivals: Sequence[Arrival]) -> list[Finding]:
    stamps = np.array([arrival.stamp_ns for arrival in arrivals])
    if not stamps.any():
        return [error(name, "carries no time (its stamps are 0)", "have the driver stamp its messages")]
    age_s, simulated = _age_s(arrivals), int(np.median(stamps)) < _SIMULATED_NS
    if simulated != (arrivals[-1].now_ns < _SIMULATED_NS):
        fact = (
            f"has stamps of {'simulated' if simulated else 'real'} time, {abs(age_s):.0f} s from the present"
        )
        return [error(name, fact, "give every node the same use_sim_time, true where /clock is published")]
    if age_s > stream.max_age_s:
        fact = f"is {age_s:.3f} s old on arrival, max_age_s allows {stream.max_age_s:g}"
        return [error(name, fact, _SYNCHRONISE)]
    if age_s < -AHEAD_S:
        return [error(name, f"has stamps {-age_s:.3f} s ahead of this machine's clock", _SYNCHRONISE)]
    back = int((np.diff(stamps) < 0).sum())
    if name != "joint_states" and back:
        fact = f"went back in time {back} times in {len(stamps)} messages"
        return [warning(name, fact, "is there a second publisher, or a bag that loops?")]
    if age_s > 0.5 * stream.max_age_s:
        fact = f"is {age_s:.3f} s old on arrival, more than half of max_age_s = {stream.max_age_s:g}"
        return [warning(name, fact, f"find the delay, or {_SYNCHRONISE}")]
    return []


def _joints(contract: Contract, watched: Watched) -> Iterator[Finding]:
    if not watched.joints:
        return
    absent = [joint.name for joint in contract.joints if joint.name not in watched.joints]
    if absent:
        near = difflib.get_close_matches(absent[0], watched.joints, n=1, cutoff=0.5)
        unknown = sorted(set(watched.joints) - set(contract.joint_names))
        hint = f"; did you mean {near[0]!r}?" if near else ""
        fix = f"fix the names of joints, or start the driver that publishes them{hint}"
        fix += f"; others there: {listed(unknown) or 'none'}"
        yield error("joint_states", f"no state of {', '.join(absent)}", fix)
    for joint in contract.joints:
        position = watched.joints.get(joint.name, joint.lower)
        limits = JointLimits.of([joint])
        (slack,), (position,) = _SLACK * limits.span, limits.inside(np.array([position]))
        if not joint.lower - slack <= position <= joint.upper + slack:
            fact = f"is at {position:.3g}, its limits are {joint.lower:g} to {joint.upper:g}"
            fix = "fix lower and upper (in rad or m, whatever unit says), or the driver if it sends degrees"
            yield warning(f"joint {joint.name}", fact, fix)


def _together(contract: Contract, watched: Watched) -> Iterator[Finding]:
    first, *further = [f"camera/{camera.name}" for camera in contract.cameras]
    for other in further:
        a, b = (
            np.sort([arrival.stamp_ns for arrival in watched.arrivals.get(n, [])]) for n in (first, other)
        )
        if len(a) and len(b):
            skew_s = float(np.median(np.abs(a[:, None] - b[None]).min(axis=1))) * 1e-9
            if skew_s > contract.max_skew_s:
                sentence = f"{first} and {other} are {skew_s:.3f} s apart"
                fix = "trigger the cameras together, raise their rate, or raise max_skew_s"
                yield error("max_skew_s", f"{sentence}, max_skew_s allows {contract.max_skew_s:g}", fix)
    if watched.observations:
        yield ok("observation", f"{watched.observations} could be made of all streams")
    else:
        lacking = watched.waiting_for or "nothing arrived"
        yield error("observation", f"none could be made: {lacking}", "fix the streams above")


def _parts(sentence: str) -> tuple[str, str]:
    """Split a sentence "what: fix"; fix is empty if there is none."""
    fact, _, fix = sentence.rpartition(": ")
    return (fact, fix) if fact else (sentence, "")
