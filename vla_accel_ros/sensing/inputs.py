"""What a node received of its streams, as plain data: the topic `inputs`.

A chunk tells when its images were taken, and nothing of images that came while it was computed: who watches a
camera by chunks takes a slow model for a silent camera. So inference tells, beside its chunks, what it has
received of every stream, and at which pace it makes chunks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Inputs:
    """See msg/Inputs.msg. Streams are named `camera/<name>` and `joint_states`, as the watchdog names them.

    told_ns: when. stamps_ns: the newest usable sample of each stream, without those of which none has come.
    problems: a sentence for each stream that has one. waiting_for: why no chunk is being made, or empty.
    chunks_per_s, chunks_per_s_needed: 0 where not known; needed is infinite where no pace is enough.
    """

    told_ns: int
    stamps_ns: Mapping[str, int] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    waiting_for: str = ""
    chunks_per_s: float = 0.0
    chunks_per_s_needed: float = 0.0

    @property
    def slow(self) -> str:
        """A sentence when the model is too slow for the contract, else empty."""
        if not self.chunks_per_s or self.chunks_per_s >= self.chunks_per_s_needed:
            return ""
        made = f"the model makes {self.chunks_per_s:.1f} chunks/s"
        if math.isinf(self.chunks_per_s_needed):
            return f"{made}, each too old for chunk.max_age_s as it comes: raise it, or make the model faster"
        return (
            f"{made}; this contract needs {self.chunks_per_s_needed:.1f}: "
            "raise chunk.max_age_s, or make the model faster"
        )
