"""Execution horizons: what each rule makes of a chunk, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from installed import python

from vla_accel_ros.control.horizon import LEAST, Horizon, HorizonInputs, Horizons, limited, parse
from vla_accel_ros.types import Chunk

STEP_NS = 100_000_000
NAN = float("nan")


def make_chunk(
    steps: Sequence[Sequence[float]] | np.ndarray | None,
    actions: object = None,
    stamp: int = 0,
    horizon: int = 6,
) -> Chunk:
    """steps: sizes of updates [S, H]. actions [H, D]; zeros of two joints. stamp: in steps."""
    sizes = None if steps is None else np.array(steps, np.float32)
    total = horizon if sizes is None else sizes.shape[1]
    targets = np.zeros((total, 2), np.float32) if actions is None else np.array(actions, np.float32)
    last = np.zeros(total, np.float32) if sizes is None else sizes[-1]
    return Chunk(targets, stamp * STEP_NS, 0.1, stamp, stamp, last, step_magnitudes=sizes)


def wanted(word: str, chunk: Chunk) -> int:
    return parse(word).of(HorizonInputs(chunk)).wanted


FIGURE_7 = [[4, 4, 4, 4, 2, 4], [2, 2, 2, 2, 2, 2], [1, 1, 1, 1, 3, 1]]
"""Kairos' example: the fifth action's last update is 50 % above the mean of its earlier ones."""


def test_the_first_action_whose_last_update_exceeds_the_mean_of_its_earlier_ones_ends_the_prefix():
    chunk = make_chunk(FIGURE_7)
    assert wanted("update_ratio:0.4+least:1", chunk) == 4
    assert wanted("update_ratio:0.6+least:1", chunk) == 6
    assert wanted("update_ratio:0.4+least:5", chunk) == 5, "max(H_thresh, H_min)"
    assert wanted("update_ratio:0.4", chunk) == min(LEAST, 6)
    assert wanted("update_ratio:-0.9+least:1", chunk) == 1, "never nothing"


def test_elastic_is_on_top_of_whatever_decides_and_ends_with_the_chunk():
    chunk = make_chunk(FIGURE_7)
    assert parse("update_ratio:0.4+least:1+elastic:1").of(HorizonInputs(chunk)) == Horizon(4, 5)
    assert parse("static:3+elastic:8").of(HorizonInputs(chunk)) == Horizon(3, 6)
    assert parse("static:9").of(HorizonInputs(chunk)) == Horizon(6, 6)


@pytest.mark.parametrize("word", ["all", "update_ratio:0.4+least:1"])
def test_a_chunk_without_the_signal_is_executed_whole(word: str):
    """As those of models that act by tokens, whose last update is 0 and who have no others."""
    assert wanted(word, make_chunk(None)) == 6
    assert wanted(word, make_chunk(None, horizon=1)) == 1


def test_one_denoising_step_has_nothing_to_compare_the_last_with():
    assert wanted("update_ratio:0.4+least:1", make_chunk([[1, 2, 3]])) == 3


@pytest.mark.parametrize(
    ("spec", "updates", "says"),
    [
        ("update_ratio:0.4", 0, "needs 2 denoising updates a chunk, and there are 0: use all or static:N."),
        ("update_ratio:0.4", 1, "needs 2 denoising updates a chunk, and there are 1"),
        ("all; put *=update_ratio:0.4", 0, "needs 2 denoising updates a chunk, and there are 0"),
    ],
)
def test_a_horizon_without_its_signal_is_refused(spec: str, updates: int, says: str):
    with pytest.raises(ValueError) as refusal:
        Horizons(spec).check(updates)
    assert says in str(refusal.value) and str(refusal.value).startswith("horizon is ")


def test_no_number_is_no_confidence():
    assert wanted("update_ratio:0.4+least:1", make_chunk([[1, 1, NAN, 1], [1, 1, 1, 1]])) == 2


def test_an_action_that_no_step_moves_has_converged():
    assert wanted("update_ratio:0.4+least:1", make_chunk([[0, 1], [0, 1]])) == 2
    assert wanted("update_ratio:0.4+least:1", make_chunk([[0, 1], [1, 1]])) == 1, "above the mean of none"


@given(
    arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=st.floats(width=32)),
    st.sampled_from(["update_ratio:0.1", "static:5", "all"]),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_whatever_comes_at_least_one_action_and_at_most_all_are_executed(sizes, word, least, elastic):
    chunk = make_chunk(sizes)
    bounds = (f"+least:{least}" if least else "") + (f"+elastic:{elastic}" if elastic else "")
    found = parse(word + bounds).of(HorizonInputs(chunk))
    assert 1 <= found.wanted <= found.most <= chunk.horizon
    assert found.wanted >= min(least, chunk.horizon)
    assert 1 <= limited(chunk, found).executed <= chunk.horizon


def test_a_chunk_that_is_executed_whole_stays_as_it_is():
    chunk = make_chunk(None)
    assert limited(chunk, Horizon(3, 6)) is chunk
    assert limited(chunk, Horizon(3, 5)).execution_horizon == 5


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("", "'' is none of vla_accel_ros.horizons (all, static, update_ratio"),
        ("statik:8", "'statik' is none of"),
        ("static", "static:N takes one number, not 0"),
        ("static:0", "static:N takes a whole number of actions from 1 to 10000, not 0"),
        ("static:2.5", "static:N takes a whole number"),
        ("static:eight", "'eight' is no number"),
        ("static:nan", "'nan' is no number"),
        ("all:3", "all takes no number: use static:N"),
        ("update_ratio:-1", "update_ratio:T takes a share above -1"),
        ("update_ratio:1:2", "update_ratio:T takes one number, not 2"),
        ("static:3+most:4", "'most:4' is not a bound, or is given twice"),
        ("static:3+least:4+least:5", "'least:5' is not a bound, or is given twice"),
        ("static:3+elastic", "'' is no number"),
        ("static:3+elastic:0", "elastic:N takes a whole number of actions from 1"),
    ],
)
def test_what_is_no_horizon_is_refused_in_one_sentence(word: str, says: str):
    with pytest.raises(ValueError) as refusal:
        Horizons(word)
    text = str(refusal.value)
    assert text.startswith(f"horizon is {word!r}, but ") and says in text and "\n" not in text


def test_each_task_may_have_a_rule_of_its_own():
    horizons = Horizons("static:5; put * pad=static:2; FOLLOW*=all")
    chunk = make_chunk(None)
    for instruction, actions in (
        ("reach the red block", 5),
        ("put the red block on the white pad", 2),
        ("  Put it on a PAD ", 2),
        ("follow the red block", 6),
        ("", 5),
    ):
        assert horizons.of(chunk, instruction) == Horizon(actions, actions), instruction
    with pytest.raises(ValueError, match="'static:3' after a ';'"):
        Horizons("all; static:3")
    with pytest.raises(ValueError, match="horizon has '=static:3' after a ';'"):
        Horizons("all; =static:3")
    with pytest.raises(ValueError, match=r"'statik'.* static"):
        Horizons("all; put *=statik:3")


def test_a_horizon_of_another_package_is_found(added: Path):
    program = (
        "import sys\nimport numpy as np\n"
        "from vla_accel_ros.control.horizon import Horizons\nfrom vla_accel_ros.types import Chunk\n"
        "chunk = Chunk(np.zeros((6, 2)), 0, 0.1, 0, 0, np.zeros(6))\n"
        "print(Horizons('half+elastic:1').of(chunk))\n"
        "assert not {'torch', 'rclpy'} & set(sys.modules)"
    )
    done = python(program, path=added)
    assert done.stdout == "Horizon(wanted=3, most=4)\n", done.stderr
