"""What Kairos' paper reports, for comparison: reductions in percent, as changes (negative is less).

TABLE_2: its Table 2, at the highest arrival rate, by workload, baseline and variant: P25, average, P95. Ours
stand for LIBERO/Pi0.5, MetaWorld/SmolVLA, RoboTwin/Fast-WAM and Bimanual/Pi0.5. CLOSED: section 5.3, offline
serving: average by number of robots, over both baselines, least and most. BUCKETS: Figure 15, two buckets
instead of ten, the worst.
"""

from __future__ import annotations

from collections.abc import Mapping

WHOLE, NO_HORIZON, NO_SCHEDULER = "kairos", "without dynamic horizon", "without scheduler"
Reductions = tuple[float, float, float]

TABLE_2: Mapping[tuple[str, str], Mapping[str, Reductions]] = {
    ("libero_pi05", "fifo"): {
        WHOLE: (-76.4, -65.6, -51.9), NO_HORIZON: (-57.0, -33.0, -5.7), NO_SCHEDULER: (-58.0, -54.9, -49.6)
    },
    ("meta_smol", "fifo"): {
        WHOLE: (-86.9, -60.5, -43.0), NO_HORIZON: (-59.0, -34.1, -4.3), NO_SCHEDULER: (-49.9, -43.7, -39.3)
    },
    ("robotwin_wam", "fifo"): {
        WHOLE: (-57.9, -33.0, -25.7), NO_HORIZON: (-29.0, -8.1, -8.0), NO_SCHEDULER: (-46.5, -32.5, -21.7)
    },
    ("bimanual_pi05", "fifo"): {
        WHOLE: (-53.3, -39.9, -22.2), NO_HORIZON: (-47.9, -28.1, -4.1), NO_SCHEDULER: (-24.9, -24.3, -18.9)
    },
    ("libero_pi05", "las"): {
        WHOLE: (-77.4, -66.5, -52.0), NO_HORIZON: (-59.0, -34.6, -5.9), NO_SCHEDULER: (-55.8, -53.9, -49.8)
    },
    ("meta_smol", "las"): {
        WHOLE: (-88.4, -63.6, -48.2), NO_HORIZON: (-63.5, -39.3, -13.2), NO_SCHEDULER: (-44.5, -41.3, -36.0)
    },
    ("robotwin_wam", "las"): {
        WHOLE: (-62.4, -36.6, -25.2), NO_HORIZON: (-36.6, -12.9, -7.3), NO_SCHEDULER: (-44.2, -34.2, -22.5)
    },
    ("bimanual_pi05", "las"): {
        WHOLE: (-55.9, -42.3, -24.6), NO_HORIZON: (-50.8, -31.0, -7.0), NO_SCHEDULER: (-23.9, -23.1, -19.8)
    },
}  # fmt: skip
CLOSED: Mapping[int, tuple[float, float]] = {10: (-20.4, -21.4), 50: (-33.9, -37.8), 100: (-41.0, -42.8)}
BUCKETS = 33.9
