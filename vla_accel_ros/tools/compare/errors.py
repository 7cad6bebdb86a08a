"""How far the chunks of two programs are apart, in each dimension of an action.

Float32 on two sets of kernels differs in the last bits, far below what a robot can do. A wrong setting (the
prompt, the normalisation, relative actions) differs by a good part of the range of an action.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SAME = 1e-3
"""Largest error of actions that are the same, as a share of their range."""
STILL = 1e-3
"""Least range of a dimension, as a share of the largest."""


@dataclass(frozen=True)
class Errors:
    """largest: float64 [D], in the policy's units. range: float64 [D], of the actions in training, or else of
    the peer's actions; that of a dimension that hardly moved is STILL of the largest."""

    largest: np.ndarray
    range: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """float64 [D]: the errors as shares of the ranges."""
        return self.largest / self.range

    @property
    def same(self) -> bool:
        """Whether the two programs compute the same actions."""
        return bool((self.shares <= SAME).all())


def errors(ours: np.ndarray, peers: np.ndarray, trained: np.ndarray) -> Errors:
    """Compare chunks float [N, H, D]. trained: lowest and highest action in training, float64 [2, D]; [2, 0]
    without statistics.

    Raises ValueError, with one sentence, if the shapes differ or a number is not finite.
    """
    if ours.shape != peers.shape:
        raise ValueError(
            f"this package computes {_shape(ours)}, the peer {_shape(peers)}; give both the same "
            "settings (vla inspect shows ours)."
        )
    for who, chunks in (("this package", ours), ("the peer", peers)):
        if not np.isfinite(chunks).all():
            raise ValueError(f"{who} computes actions that are not finite; copy the checkpoint again.")
    ours, peers = ours.astype(np.float64), peers.astype(np.float64)
    low, high = trained if trained.shape[1] == ours.shape[2] else (peers.min((0, 1)), peers.max((0, 1)))
    spans = np.abs(high - low)
    narrowest = STILL * spans.max() if spans.max() else 1.0
    return Errors(np.abs(ours - peers).max((0, 1)), np.maximum(spans, narrowest))


def _shape(chunks: np.ndarray) -> str:
    return f"{chunks.shape[0]} chunks of {chunks.shape[1]} actions of {chunks.shape[2]} numbers"
