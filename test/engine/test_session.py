"""A session says what an engine is; a request can be made again by its number, in whatever slot."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest
from builders import make_embodiment, make_observation, make_policy

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.session import session_of, statistics_checksum
from vla_accel_ros.models.processing.conventions import LEROBOT, Normalizer
from vla_accel_ros.nodes.running.environment import demo_contract


def make_session(**settings):
    engine = Engine(make_policy(), steps=3, seed=11)
    choices = {"seed": 11, "time_rule": "auto", "device": "auto", **settings}
    topics, contract = {"front": "/arm/front"}, demo_contract().read_text()
    return session_of(engine, choices, model="/m", contract=contract, urdf="", topics=topics)


def test_a_session_says_what_was_found_for_what_was_left_open():
    session = make_session()
    settings = json.loads(session.settings)
    assert len(settings.pop("statistics_sha256")) == 64 and settings["step_dt_s"] == 1 / 30
    assert settings.pop("pixels") == {"filter": "bilinear", "fit": "centre", "border": -1.0, "size": 28}
    known = {"time_rule": "openpi", "device": "cpu", "dtype": "float32", "steps": 3, "seed": 11}
    assert settings == {**asdict(EngineConfig()), **known}
    assert session.contract == demo_contract().read_text() and session.urdf == ""
    assert (session.cameras, session.topics) == (("front",), ("/arm/front",))
    assert any(version.startswith("torch ") for version in session.versions)
    assert session.id != make_session().id


def test_differences_name_what_numbers_depend_on_and_nothing_else():
    session = make_session()
    assert (
        session.differences(replace(session, id="b", model="/elsewhere", topics=("/x",), contract="")) == []
    )
    assert session.differences(make_session(seed=12, more=1)) == ["seed 11, here 12", "more unknown, here 1"]
    other = replace(session, checksum="a" * 64, build="b" * 64, versions=("torch 1.0", *session.versions[3:]))
    found = session.differences(other)
    assert found[0] == f"checkpoint unknown, here {'a' * 12}"
    assert found[1].startswith("code of vla_accel_ros ") and found[1].endswith(f"here {'b' * 12}")
    assert any(phrase.startswith("torch ") and phrase.endswith("here 1.0") for phrase in found)


@pytest.mark.parametrize("damage", ["", "null", "[]", "{", "[" * 100_000])
def test_damaged_settings_are_refused_in_a_sentence_that_names_the_session(damage):
    session = replace(make_session(), id="abcdefgh1", settings=damage)
    with pytest.raises(ValueError, match="session abcdefgh ") as refusal:
        session.by_name()
    assert len(str(refusal.value)) < 300


def test_a_robot_that_shares_the_engine_has_a_session_of_its_own():
    policy = make_policy()
    engine, other = Engine(policy, steps=3), make_embodiment(policy)
    engine.runner.robots.add("right", other)
    session = partial(session_of, model="/m", contract="", urdf="", topics={})
    own, right = (session(engine, {"seed": 0}, robot=name) for name in ("", "right"))
    assert json.loads(right.settings)["robot"] == "right"
    found = own.differences(right)
    assert [phrase.split(" ")[0] for phrase in found] == ["statistics_sha256", "step_dt_s"]
    assert found[1] == f"step_dt_s {1 / 30}, here 0.05"
    alone = Engine(other.policy, steps=3, step_dt_s=other.step_dt_s)
    assert session(alone, {"seed": 0}).differences(right) == []
    with pytest.raises(ValueError, match="'left'"):
        session(engine, {}, robot="left")


@pytest.mark.parametrize(
    "changes",
    [
        {"delta_mask": np.ones(6, bool)},
        {"prompt_state": "none"},
        {"state_normalizer": Normalizer.identity()},
        {"conventions": LEROBOT},
    ],
)
def test_the_checksum_of_statistics_is_of_all_that_makes_numbers(changes):
    policy = make_policy()
    assert statistics_checksum(replace(policy, **changes)) != statistics_checksum(policy)
    assert statistics_checksum(replace(policy)) == statistics_checksum(make_policy())


def test_the_noise_of_a_request_makes_its_chunk_again(kind):
    engine = Engine(make_policy(kind), steps=3, seed=5)
    felt = np.full(6, 0.25, np.float32)
    with engine.observe(make_observation()) as prefix:
        chunks = [engine.act(prefix, felt) for _ in range(3)]
    other = Engine(make_policy(kind), steps=3, seed=5)
    with other.observe(make_observation()) as prefix:
        for chunk in reversed(chunks):
            again = other.act(prefix, chunk.state, chunk.request_id)
            assert again.actions.tobytes() == chunk.actions.tobytes()
            assert again.update_magnitudes.tobytes() == chunk.update_magnitudes.tobytes()
    assert (chunks[0].state is not None) == (kind == "pi0")


def test_a_chunk_is_the_same_to_the_bit_in_whatever_slot_its_prefix_lies():
    engine = Engine(make_policy(), slots=5, steps=3)
    noise, found = engine.runner.actor.noise(0), set[bytes | str]()
    prefixes = [engine.observe(make_observation()) for _ in range(5)]
    for prefix in prefixes:
        found.add(engine.act(prefix, noise=noise).actions.tobytes())
        with engine.ask(prefix) as answer:
            found.add("".join(answer))
    assert len({prefix.slot for prefix in prefixes}) == 5 and len(found) == 2
