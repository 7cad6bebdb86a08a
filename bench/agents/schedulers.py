"""The schedulers that are compared: each a policy and its lanes."""

from __future__ import annotations

from collections.abc import Mapping

from vla_accel_ros.engine.policies.agents import (
    LANGUAGE,
    VISION,
    ChunkedPrefill,
    PrefillFirst,
    Share,
    SideBySide,
)
from vla_accel_ros.engine.policies.policy import Policy

ONE, TWO = ("main",), (VISION, LANGUAGE)
FIFO, PREFILL_FIRST, CHUNKED = "fifo", "prefill_first", "chunked"
TWO_STREAMS, STATIC, ADAPTIVE = "two_streams", "static", "adaptive"
LANES: Mapping[str, tuple[str, ...]] = {
    FIFO: ONE,
    PREFILL_FIRST: ONE,
    CHUNKED: ONE,
    TWO_STREAMS: TWO,
    STATIC: TWO,
    ADAPTIVE: TWO,
}
"""By name; fifo takes whole requests one after another."""
COMPARED = (PREFILL_FIRST, CHUNKED, TWO_STREAMS, STATIC, ADAPTIVE)
LIMIT = 5
"""Open answers that may wait in prefill_first, as in Nova."""


def make(name: str, shares: Mapping[str, Mapping[str, Share]], chunk: int, sms: int = 0) -> Policy:
    """A policy of that name. shares: of STATIC and ADAPTIVE, by stage; chunk: tokens of a chunked prefill;
    sms: multiprocessors of the GPU. Raises KeyError for a name that is none."""
    if LANES[name] == TWO:
        return SideBySide(shares.get(name), sms)
    if name == CHUNKED:
        return ChunkedPrefill(chunk)
    return PrefillFirst(0 if name == FIFO else LIMIT)
