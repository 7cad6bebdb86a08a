"""Every option of an engine is a field of EngineConfig; parameters, commands and sessions follow it, and what
cannot be is refused: values alone, beside others, or for the policy."""

from __future__ import annotations

import argparse
import copy
import json
import pickle
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from builders import make_policy

from vla_accel_ros.engine.config import EngineConfig, renamed
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.session import session_of
from vla_accel_ros.nodes.params.over_file import launch_arguments
from vla_accel_ros.nodes.params.parameter import parameters
from vla_accel_ros.nodes.params.tables import NODES
from vla_accel_ros.option import option, options
from vla_accel_ros.tools.options import engine_options


@dataclass(frozen=True, kw_only=True)
class Wider(EngineConfig):
    """A config with one option more."""

    patience: int = option(3, "How long it waits.", minimum=1, maximum=9, former="endurance")


def test_new_field_is_parameter_command_option_and_part_of_session() -> None:
    (parameter,) = (entry for entry in parameters(Wider) if entry.name == "patience")
    assert (parameter.default, parameter.minimum, parameter.maximum) == (3, 1, 9)
    assert (parameter.description, parameter.former) == ("How long it waits.", "endurance")
    parser = argparse.ArgumentParser()
    engine_options(parser, "patience", config=Wider)
    assert parser.parse_args(["--patience", "5"]).patience == 5
    assert parser.parse_args(["--endurance", "5"]).patience == 5
    with pytest.raises(ValueError, match="patience is 10"):
        Wider(patience=10)
    engine = Engine(make_policy("pi0"), Wider(patience=4))
    session = session_of(engine, {}, model="", contract="", urdf="", topics={})
    assert json.loads(session.settings)["patience"] == 4


def test_every_option_is_parameter_of_its_nodes_and_launch_argument() -> None:
    table = options(EngineConfig)
    for node, fleet in (("inference", False), ("fleet_scheduler", True)):
        names = [name for name, entry in table.items() if entry.parameter and (entry.fleet or not fleet)]
        assert set(names) <= {parameter.name for parameter in NODES[node]}
        assert [name for name, _, _ in launch_arguments(node, names)] == names
    assert not {"step_dt_s", "camera_hz"} & {parameter.name for parameter in NODES["inference"]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "x") for name, entry in options(EngineConfig).items() if entry.choices),
        *(
            (name, entry.minimum - 1)
            for name, entry in options(EngineConfig).items()
            if entry.minimum is not None
        ),
        *(
            (name, entry.maximum + 1)
            for name, entry in options(EngineConfig).items()
            if entry.maximum is not None
        ),
        ("text_share", float("nan")),
        ("step_dt_s", 0.0),
        ("action_hz", float("inf")),
        ("staggered", 1),
    ],
)
def test_value_that_option_cannot_have_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} is '?{value}"):
        EngineConfig(**{name: value})


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ("calibration", {"calibration": "file"}),
        ("keep_exact", {"keep_exact": False}),
        ("keep_exact", {"keep_exact": False, "precision": "w8a8", "staggered": 2}),
        ("partition", {"partition": "32:100"}),
        ("partition", {"partition": "1"}),
        ("staggering", {"staggering": "fresh"}),
        ("seats_by_load", {"seats_by_load": True}),
        ("joints_each_step", {"joints_each_step": True}),
        ("frames_together", {"frames_together": 2, "prefill_groups": 2}),
    ],
)
def test_combination_that_cannot_be_is_refused(named: str, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{named} is "):
        EngineConfig(**given)


def test_config_knows_what_it_was_given_also_as_copy() -> None:
    config = EngineConfig(steps=10, seed=1)
    for same in (config, copy.copy(config), pickle.loads(pickle.dumps(config))):
        assert same.given == {"steps": 10, "seed": 1}
    assert config.but(seed=2, slots=9).given == {"steps": 10, "seed": 2, "slots": 9}
    assert replace(config, seed=2).given.keys() == options(EngineConfig).keys()
    assert config == EngineConfig(seed=1)


def test_settings_of_earlier_versions_have_present_names() -> None:
    former = {"kv_slots": 5, "denoise_steps": 4, "language_answers": 2, "language_max_tokens": 8, "seed": 1}
    present = {"slots": 5, "steps": 4, "answers": 2, "answer_tokens": 8, "seed": 1}
    assert renamed({**former, "eight_bit_denoise": False, "noise": "fresh"}) == present
    assert renamed({**former, "eight_bit_denoise": True}) == {**present, "eight_bit_denoise": True}


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


@pytest.mark.parametrize("name", list(options(EngineConfig)))
def test_a_value_of_another_type_is_refused_in_a_sentence_that_names_the_option(name: str) -> None:
    text = isinstance(getattr(EngineConfig(), name), str)
    values: list[Any] = [None, [], {}, 1 if text else "x" * 5000]
    for value in values:
        with pytest.raises(ValueError, match=f"^{name} is ") as refusal:
            EngineConfig(**{name: value})
        assert len(str(refusal.value)) < 300
