"""Answers of policy servers that err or mean harm, as our client reads them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from mutators import damaged

from vla_accel_ros.wire.arrays import pack, unpack_any
from vla_accel_ros.wire.dialects import DIALECT, MOST_ACTIONS, MOST_DIMS, ServerError

ROWS = np.arange(24.0, dtype=np.float32).reshape(3, 8)
STEP = {"right_arm": ROWS[0, :7], "right_gripper": ROWS[0, 7:]}
REQUEST = {"state": STEP}
WELL: dict[str, dict[str, Any]] = {
    "openpi": {"actions": ROWS, "server_timing": {"infer_ms": 1.0}},
    "vllm-omni": {"arm": ROWS},
    "starvla": {"ok": True, "data": {"actions": ROWS[None]}},
    "galaxea": {"action": STEP, "need_obs": True},
}
OTHERS: tuple[Any, ...] = (
    None,
    True,
    "text",
    [],
    {},
    [[1.0], [1.0, 2.0]],
    [["a"]],
    np.zeros((0, 8)),
    np.zeros((3, 0)),
    np.zeros((1, 300)),
    np.full((2, 2), np.inf),
    np.full((2, 2), 1e300),
    np.zeros((2, 2), np.datetime64),
    np.array(["a"]),
    np.ones((2, 2), np.bool_),
    2**63,
    {"right_arm": "a"},
)


class ServerAnswers:
    """A chunk comes out of an answer, or a sentence. What was not damaged must come back."""

    def __call__(self, chance: random.Random) -> str:
        name = chance.choice(tuple(WELL))
        how = chance.choice(("well", "bits", "value", "value", "key"))
        answer = dict(WELL[name])
        if how == "value":
            answer[chance.choice(("actions", "action", "arm", "data", "error", "ok", "type"))] = (
                chance.choice(OTHERS)
            )
        if how == "key":
            del answer[chance.choice(tuple(answer))]
        message = pack(answer)
        if how == "bits":
            message = damaged(chance, message)
        try:
            actions = DIALECT[name]().actions([unpack_any(message)], REQUEST)
        except (ServerError, ValueError) as error:
            assert how != "well" and 0 < len(str(error)) < 500 and "\n" not in str(error), error
            return "refused"
        assert actions.dtype == np.float32 and np.isfinite(actions).all()
        assert 0 < len(actions) <= MOST_ACTIONS and 0 < actions.shape[1] <= MOST_DIMS
        if how == "well":
            assert np.array_equal(actions, ROWS[: len(actions)])
        return "loaded"
