"""Durations of the stages of an agent, and settings of schedulers."""

from __future__ import annotations

from agents.captured import BATCHES
from agents.durations import Durations
from agents.rules import PAUSED, SCREENS_FIRST, SHARED, Beside, Share, Table
from agents.schedulers import ADAPTIVE, PLANNED, STATIC
from agents.tuning import Settings
from vla_accel_ros.engine.request import ENCODE, PREFILL

DURATIONS = Durations(
    encode_s=0.08,
    prefill_s=0.03,
    decode_s={batch: 0.010 + 0.0001 * batch for batch in BATCHES},
    chunk_s={batch: 0.013 + 0.0001 * batch for batch in (0, *BATCHES)},
    beside={
        SHARED: Beside(0.10, 0.040, 0.040, 0.035),
        SCREENS_FIRST: Beside(0.085, 0.060, 0.032, 0.050),
        8: Beside(0.09, 0.050, 0.034, 0.055),
        16: Beside(0.10, 0.025, 0.038, 0.030),
        32: Beside(0.12, 0.015, 0.045, 0.018),
    },
)

PAUSING = Table(((PAUSED, 16, 16, 32), (PAUSED, PAUSED, SCREENS_FIRST, 8, SHARED)))
"""Of everything something."""

SETTINGS = Settings(
    limit=5,
    shares={
        STATIC: {ENCODE: Share(32), PREFILL: Share(32)},
        ADAPTIVE: {ENCODE: Share(32, 8, 8), PREFILL: Share(32, 8, 8)},
        PLANNED: {ENCODE: PAUSING, PREFILL: PAUSING},
    },
    expected_s={},
)
