"""How much motion one chunk may ask for, so that what it costs to follow it is bounded.

Blending, limiting and sending take time in proportion to the number of actions, and a chunk is somebody
else's message: one of 48 kB that asks for hours of motion must not keep a robot from being stopped. Whatever
takes chunks in asks here first, before it looks at a single number of them.
"""

from __future__ import annotations

MOST_ACTIONS = 256
MOST_JOINTS = 256
LONGEST_S = 60.0
SHORTEST_STEP_S = 1e-3
LONGEST_STEP_S = 1.0


def check_chunk_size(what: str, actions: int, joints: int, step_dt_s: float) -> None:
    """Refuse a chunk of `actions` rows and `joints` columns, `step_dt_s` seconds apart, that is too much:
    ValueError, in one sentence that begins with `what`."""
    if actions > MOST_ACTIONS:
        raise ValueError(f"{what} has {actions} actions: send at most {MOST_ACTIONS}")
    if joints > MOST_JOINTS:
        raise ValueError(f"{what} has {joints} joints: send at most {MOST_JOINTS}")
    if not SHORTEST_STEP_S <= step_dt_s <= LONGEST_STEP_S:
        raise ValueError(
            f"{what} has step_dt_s {step_dt_s}: it must be at least {SHORTEST_STEP_S:g} s and at most "
            f"{LONGEST_STEP_S:g} s"
        )
    if actions * step_dt_s > LONGEST_S:
        raise ValueError(f"{what} asks for {actions * step_dt_s:g} s of motion: send at most {LONGEST_S:g} s")
