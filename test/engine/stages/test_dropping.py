"""Weights in fewer bits alone: the same chunks, less memory, and a sentence for what needs the exact ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_checkpoint, make_config, make_observation, make_policy
from openvla_builders import make_openvla_folder, make_openvla_observation

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.stages.dropping import dropping
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.flow.rtc import Guidance
from vla_accel_ros.models.layers.few_bits import given, kinds_given
from vla_accel_ros.models.policies import AnyPolicy

CPU = torch.device("cpu")
PRECISIONS = ("fp8", "int8", "int4")


def alone(folder: Path, precision: str) -> AnyPolicy:
    """Loaded with what can be in that precision alone."""
    return load_policy(folder, layer_loaded=dropping(precision, CPU))


def bytes_of(policy: AnyPolicy) -> int:
    """Of its model, in either form; rows of one memory count once."""
    tensors = [parameter for parameter in policy.model.parameters() if not parameter.is_meta]
    small = [matrix for module in policy.model.modules() for matrix in given(module).values()]
    return sum(tensor.nbytes for tensor in tensors) + sum(matrix.nbytes for matrix in small)


def chunk(engine: Engine, observation: Any = None) -> np.ndarray:
    with engine.observe(observation or make_observation()) as prefix:
        return engine.act(prefix, noise=1).actions


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_chunks_are_those_of_an_engine_that_has_both(kind: str, precision: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, make_config(kind))
    options: dict[str, Any] = {"fast": True, "precision": precision, "steps": 3}
    both = Engine(load_policy(folder), **options)
    loaded = Engine(alone(folder, precision), **options, keep_exact=False)
    later = Engine(load_policy(folder), **options, keep_exact=False)
    expected = chunk(both)
    assert np.array_equal(chunk(loaded), chunk(later))
    near = 1e-6 if kind == "pi0" else 0.02  # the shift of pi0.5's norms goes through what the steps multiply
    assert np.abs(chunk(loaded) - expected).max() <= near * np.abs(expected).max()
    assert bytes_of(loaded.policy) == bytes_of(later.policy) < bytes_of(both.policy)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nothing_is_given_up_but_what_the_stages_have_in_fewer_bits(precision: str) -> None:
    policy = make_policy("pi05")
    engine = Engine(policy, fast=True, precision=precision)
    chunk(engine)
    stages = engine.runner.stages
    assert isinstance(stages, Stages)
    copied = stages.small.nbytes
    Engine(policy, fast=True, precision=precision, keep_exact=False)
    model = policy.model
    small = [matrix for module in model.modules() for matrix in given(module).values()]
    assert sum(matrix.nbytes for matrix in small) == copied > 0
    assert kinds_given(model) == {precision}
    assert bool(given(model.language_model.layers[0])) == (precision == "fp8")
    assert not model.embed_table.is_meta


def test_an_openvla_has_its_stack_in_four_bits_alone(tmp_path: Path) -> None:
    folder = make_openvla_folder(tmp_path)
    policy = alone(folder, "int4")
    assert all(given(layer) for layer in policy.model.stack.layers)
    engine = Engine(policy, fast=True, precision="int4", keep_exact=False)
    actions = chunk(engine, make_openvla_observation())
    forward = engine.runner.packed_forward
    assert np.isfinite(actions).all() and forward is not None and forward.stack is forward.few
    assert forward.copied_bytes < 0.6 * bytes_of(policy)


def test_questions_are_answered_where_the_prefix_is_exact_and_else_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, make_config("pi05"))
    for precision in ("int8", "fp8"):
        engine = Engine(alone(folder, precision), fast=True, precision=precision, keep_exact=False)
        with engine.observe(make_observation()) as prefix:
            if precision == "int8":
                with engine.ask(prefix, max_tokens=2) as answer:
                    assert len(list(answer)) <= 2
            else:
                with pytest.raises(ValueError, match="no exact weights to answer with"):
                    engine.ask(prefix, max_tokens=2)


def test_guidance_that_needs_the_plain_network_is_refused(tmp_path: Path) -> None:
    engine = Engine(make_policy("pi05"), fast=True, precision="int8", keep_exact=False)
    actions = torch.zeros(1, make_config("pi05").action_dim)
    guidance = Guidance(actions, 0, 1, jacobian="exact")
    with engine.observe(make_observation()) as prefix, pytest.raises(ValueError, match="exact Jacobian"):
        engine.act(prefix, guidance=guidance)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"precision": "exact"}, "keep_exact is false, but precision is exact"),
        ({"precision": "int8", "staggered": 2}, "keep_exact is false, but staggered is 2"),
        ({"precision": "int8", "fast": False}, "which only the fast stages have"),
    ],
)
def test_what_needs_exact_weights_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Engine(make_policy("pi05"), **{"fast": True, **options}, keep_exact=False)


def test_a_policy_without_them_serves_no_engine_that_wants_them() -> None:
    policy = make_policy("pi05")
    Engine(policy, fast=True, precision="int8", keep_exact=False)
    for options in ({}, {"precision": "int8"}, {"precision": "int4", "keep_exact": False}):
        with pytest.raises(ValueError, match="this policy has some weights in int8 alone"):
            Engine(policy, fast=True, **options)
