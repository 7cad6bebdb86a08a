"""The schedulers that are compared: each a policy and its lanes."""

from __future__ import annotations

from collections.abc import Mapping

from agents.rules import LANGUAGE, VISION, ChunkedPrefill, PrefillFirst, SideBySide
from agents.tuning import Settings
from vla_accel_ros.engine.policies.policy import Policy

ONE, TWO = ("main",), (VISION, LANGUAGE)
FIFO, PREFILL_FIRST, CHUNKED = "fifo", "prefill_first", "chunked"
TWO_STREAMS, STATIC, ADAPTIVE, PLANNED = "two_streams", "static", "adaptive", "planned"
LANES: Mapping[str, tuple[str, ...]] = {
    FIFO: ONE,
    PREFILL_FIRST: ONE,
    CHUNKED: ONE,
    TWO_STREAMS: TWO,
    STATIC: TWO,
    ADAPTIVE: TWO,
    PLANNED: TWO,
}
"""By name; fifo takes whole requests one after another."""
COMPARED = (PREFILL_FIRST, CHUNKED, TWO_STREAMS, STATIC, ADAPTIVE, PLANNED)
OURS = (ADAPTIVE, PLANNED)
"""Which are compared with the best of the others."""


def make(name: str, settings: Settings, chunk: int, sms: int = 0) -> Policy:
    """A policy of that name. chunk: tokens of a chunked prefill; sms: multiprocessors of the GPU. Raises
    KeyError for a name that is none."""
    if LANES[name] == TWO:
        return SideBySide(settings.shares.get(name), sms)
    if name == CHUNKED:
        return ChunkedPrefill(chunk)
    return PrefillFirst(0 if name == FIFO else settings.limit)
