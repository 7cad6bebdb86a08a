"""Options that an engine refuses beside others or for its policy; values alone: test_engine_options."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from builders import make_policy

from vla_accel_ros.engine.engine import Engine

LAYERS = 4
"""Of the image encoder and the prefix stack together."""
DROPPED = {"fast": True, "keep_exact": False}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"staggered": 3, "slots": 5}, "slots is 5, .* 6"),
    ({"seats_by_load": True, "staggered": 2}, "seats_by_load is true"),
    ({"joints_each_step": True, "staggered": 2, "slots": 9}, "joints_each_step is true.*pi05"),
    ({"prefill_groups": 2}, "prefill_groups is 2.*fast"),
    ({"prefill_groups": LAYERS + 1, "fast": True}, f"prefill_groups is {LAYERS + 1}.* {LAYERS} layers"),
    ({"text_groups": 2}, "text_groups is 2.*fast"),
    ({"text_groups": LAYERS, "fast": True}, f"text_groups is {LAYERS}.* 2 layers"),
    *(
        ({"offload": given}, f"offload is '{given}'")
        for given in ("", "all", "vision:", "vision:0", "vision:1.5", "vision:nan", "none:0.5")
    ),
    ({"offload": "vision"}, "offload is vision.*fast"),
    ({"offload": "vision:0.5", "precision": "fp8", "fast": True}, "offload is vision and precision fp8"),
    ({"precision": "fp4", "fast": True}, "precision is 'fp4'"),
    ({"precision": "int8"}, "precision is int8.*fast"),
    ({"calibration": "x", "fast": True}, "calibration is 'x'"),
    ({"token_mode": "pipelined"}, "token_mode is 'pipelined'.*pi05"),
    ({**DROPPED, "precision": "exact"}, "keep_exact is false.*precision is exact"),
    ({**DROPPED, "precision": "int8", "staggered": 2}, "keep_exact is false.*staggered is 2"),
    ({**DROPPED, "precision": "w8a8", "staggered": 2}, "keep_exact is false.*staggered is 2"),
]


@cache
def policy() -> Any:
    return make_policy("pi05")


@pytest.mark.parametrize(("options", "fact"), REFUSED, ids=str)
def test_options_that_cannot_be_are_refused_by_name_and_value(options: dict[str, Any], fact: str) -> None:
    with pytest.raises(ValueError, match=fact):
        Engine(policy(), **options)
