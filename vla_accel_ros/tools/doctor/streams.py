"""Judge the watched streams: rates, pauses, stamps, clocks, joints, and whether they fit together.

The two usual faults look alike to a node: no images at all, and images lost by the transport. Stamps reveal a
third: the clock of another machine or of a simulator, by which everything is too old. All figures come from
`Watched`; nothing here reads a clock.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np

from vla_accel_ros.contract.contract import Contract, Stream
from vla_accel_ros.contract.findings import Finding, error, ok, warning
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


def judge(contract: Contract, seen: Watched, lacks_profile: bool = True) -> list[Finding]:
    """Return all findings on the streams; an OK for each stream without a problem.

    lacks_profile: a node of the robot lacks the Fast DDS profile.
    """
    image_hint = IMAGE_HINT if lacks_profile else PROFILED_HINT
    found: list[Finding] = []
    for camera in contract.cameras:
        hint = RING_HINT if camera.transport == "ring" else image_hint
        found += _stream(f"camera/{camera.name}", camera, seen, hint)
    driver = "raise the rate of its broadcaster, or lower rate_hz in the contract"
    found += _stream("joint_states", contract.joint_states, seen, driver)
    found += _joints(contract, seen)
    found += [warning("cameras", *_parts(sentence)) for sentence in seen.mismatches]
    return [*found, *_together(contract, seen)]


def _stream(name: str, stream: Stream, seen: Watched, hint: str) -> list[Finding]:
    arrivals = seen.arrivals.get(name, [])
    refused = seen.refused.get(name, [])
    found = [error(name, *_parts(sentence)) for sentence in dict.fromkeys(refused)]
    if not arrivals:
        fix = "look at the findings about its topic; is its driver publishing?"
        return found or [error(name, f"nothing arrived on {stream.topic}", fix)]
    rate_hz, pause_s = _rate(arrivals, seen.ended_s)
    found += _pace(name, stream, rate_hz, pause_s, hint) + _stamps(name, stream, arrivals)
    return found or [ok(name, f"{rate_hz:.1f} Hz, {_age_s(arrivals) * 1e3:.1f} ms old on arrival")]


def _rate(arrivals: Sequence[Arrival], ended_s: float) -> tuple[float, float]:
    """Return messages a second from the first one to the end of watching, and the longest pause in
    seconds."""
    times = np.array([arrival.steady_s for arrival in arrivals] + [ended_s])
    span = times[-1] - times[0]
    return (len(arrivals) / span if span > 0 else 0.0), float(np.diff(times).max())


def _pace(name: str, stream: Stream, rate_hz: float, pause_s: float, hint: str) -> list[Finding]:
    if pause_s > stream.max_age_s:
        what = f"paused for {pause_s:.2f} s at {rate_hz:.1f} Hz, max_age_s allows {stream.max_age_s:g}"
        return [error(name, f"{what}, so the robot would stop", hint)]
    if rate_hz < SLOW * stream.rate_hz:
        return [warning(name, f"arrives at {rate_hz:.1f} Hz instead of {stream.rate_hz:g}", hint)]
    if rate_hz > FAST * stream.rate_hz:
        what = f"arrives at {rate_hz:.1f} Hz, the contract says {stream.rate_hz:g}"
        return [warning(name, what, "fix rate_hz in the contract, or the rate of the driver")]
    return []


def _age_s(arrivals: Sequence[Arrival]) -> float:
    return float(np.median([arrival.now_ns - arrival.stamp_ns for arrival in arrivals])) * 1e-9


def _stamps(name: str, stream: Stream, arrivals: Sequence[Arrival]) -> list[Finding]:
    stamps = np.array([arrival.stamp_ns for arrival in arrivals])
    if not stamps.any():
        return [error(name, "carries no time (its stamps are 0)", "have the driver stamp its messages")]
    age_s, simulated = _age_s(arrivals), int(np.median(stamps)) < _SIMULATED_NS
    if simulated != (arrivals[-1].now_ns < _SIMULATED_NS):
        what = (
            f"has stamps of {'simulated' if simulated else 'real'} time, {abs(age_s):.0f} s from the present"
        )
        return [error(name, what, "give every node the same use_sim_time, true where /clock is published")]
    if age_s > stream.max_age_s:
        what = f"is {age_s:.3f} s old on arrival, max_age_s allows {stream.max_age_s:g}"
        return [error(name, what, _SYNCHRONISE)]
    if age_s < -AHEAD_S:
        return [error(name, f"has stamps {-age_s:.3f} s ahead of this machine's clock", _SYNCHRONISE)]
    back = int((np.diff(stamps) < 0).sum())
    if name != "joint_states" and back:
        what = f"went back in time {back} times in {len(stamps)} messages"
        return [warning(name, what, "is there a second publisher, or a bag that loops?")]
    if age_s > 0.5 * stream.max_age_s:
        what = f"is {age_s:.3f} s old on arrival, more than half of max_age_s = {stream.max_age_s:g}"
        return [warning(name, what, f"find the delay, or {_SYNCHRONISE}")]
    return []


def _joints(contract: Contract, seen: Watched) -> list[Finding]:
    if not seen.joints:
        return []
    found = []
    absent = [joint.name for joint in contract.joints if joint.name not in seen.joints]
    if absent:
        near = difflib.get_close_matches(absent[0], seen.joints, n=1, cutoff=0.5)
        others = sorted(set(seen.joints) - set(contract.joint_names))
        known = f"; did you mean {near[0]!r}?" if near else ""
        fix = f"fix the names of joints, or start the driver that publishes them{known}"
        fix += f"; others there: {listed(others) or 'none'}"
        found.append(error("joint_states", f"no state of {', '.join(absent)}", fix))
    for joint in contract.joints:
        position = seen.joints.get(joint.name, joint.lower)
        limits = JointLimits.of([joint])
        (slack,), (position,) = _SLACK * limits.span, limits.inside(np.array([position]))
        if not joint.lower - slack <= position <= joint.upper + slack:
            what = f"is at {position:.3g}, its limits are {joint.lower:g} to {joint.upper:g}"
            found.append(
                warning(f"joint {joint.name}", what, "fix lower and upper: in rad or m, whatever unit says")
            )
    return found


def _together(contract: Contract, seen: Watched) -> list[Finding]:
    found = []
    first, *others = [f"camera/{camera.name}" for camera in contract.cameras]
    for other in others:
        a, b = (
            np.sort([arrival.stamp_ns for arrival in seen.arrivals.get(name, [])]) for name in (first, other)
        )
        if len(a) and len(b):
            skew_s = float(np.median(np.abs(a[:, None] - b[None]).min(axis=1))) * 1e-9
            if skew_s > contract.max_skew_s:
                what = (
                    f"{first} and {other} are {skew_s:.3f} s apart, max_skew_s allows {contract.max_skew_s:g}"
                )
                fix = "trigger the cameras together, raise their rate, or raise max_skew_s"
                found.append(error("max_skew_s", what, fix))
    if seen.observations:
        return [*found, ok("observation", f"{seen.observations} could be made of all streams")]
    lacking = seen.waiting_for or "nothing arrived"
    return [*found, error("observation", f"none could be made: {lacking}", "fix the streams above")]


def _parts(sentence: str) -> tuple[str, str]:
    """Split a sentence "what: fix"; fix is empty if there is none."""
    what, _, fix = sentence.rpartition(": ")
    return (what, fix) if what else (sentence, "")
