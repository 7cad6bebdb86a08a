"""Weights in fewer bits alone: the same chunks, less memory, and a sentence for what needs the exact ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_checkpoint, make_config, make_observation, make_policy
from calibrations import calibration
from openvla_builders import make_openvla_folder, make_openvla_observation

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.stages.dropping import drop, dropping
from vla_accel_ros.engine.stages.int8 import Int8
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.calibration import fingerprint, of_a_network_to_come, products
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.flow.rtc import Guidance
from vla_accel_ros.models.layers.few_bits import given, given_as
from vla_accel_ros.models.policies import AnyPolicy

CPU = torch.device("cpu")
ROWS = ("w8a8", "w8a8-int4")
PRECISIONS = ("fp8", "int8", "int4", *ROWS)


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
    copied = stages.small.nbytes + (0 if engine.runner.int8 is None else engine.runner.int8.nbytes)
    Engine(policy, fast=True, precision=precision, keep_exact=False)
    model = policy.model
    small = [matrix for module in model.modules() for matrix in given(module).values()]
    assert sum(matrix.nbytes for matrix in small) == copied > 0
    assert given_as(model) == {precision}
    kinds = {matrix.kind for matrix in small}
    assert kinds == {"w8a8", "int4"} if precision == "w8a8-int4" else len(kinds) == 1
    assert bool(given(model.language_model.layers[0])) == (precision not in ("int8", "int4"))
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
    for precision in ("int8", "fp8", *ROWS):
        engine = Engine(alone(folder, precision), fast=True, precision=precision, keep_exact=False)
        with engine.observe(make_observation()) as prefix:
            if precision != "fp8":
                with engine.ask(prefix, max_tokens=2) as answer:
                    assert len(list(answer)) <= 2
            else:
                with pytest.raises(ValueError, match="exact weights"):
                    engine.ask(prefix, max_tokens=2)


def test_an_answer_begins_as_near_where_its_last_layer_is_in_8_bits_too(kind: str) -> None:
    both = Engine(make_policy(kind), fast=True, precision="w8a8")
    policy = make_policy(kind)
    fewer = Engine(policy, fast=True, precision="w8a8", keep_exact=False)
    hidden = []
    for engine in (both, fewer):
        with engine.observe(make_observation()) as prefix:
            hidden.append(engine.runner.prefill.last_hidden(prefix.slot, prefix.n_tokens))
    apart = float((hidden[1] - hidden[0]).norm() / hidden[0].norm())
    assert 0 < apart < 0.02
    assert policy.model.language_model.layers[-1].mlp.down_proj.weight.is_meta


def test_what_a_calibration_leaves_exact_is_kept_and_columns_are_smoothed(kind: str, tmp_path: Path) -> None:
    folder, model = make_checkpoint(tmp_path, make_config(kind)), make_policy(kind, seed=1).model
    path, other = tmp_path / "calibration.safetensors", tmp_path / "other.safetensors"
    seen = calibration(load_policy(folder).model)
    left = [name for name in seen.errors if name.endswith(("1.o", "vision.0.fc1", "prefix.1.qkv"))]
    replace(seen, errors={name: float(name in left) for name in seen.errors}).write(path)
    calibration(load_policy(folder).model, seed=1).write(other)
    options: dict[str, Any] = {"fast": True, "precision": "w8a8", "steps": 3, "calibration": str(path)}
    both = Engine(load_policy(folder), **options)
    read = Int8.of("w8a8", of_a_network_to_come(path))
    told = dropping("w8a8", CPU, int8=read, calibration=str(path))
    loaded = Engine(load_policy(folder, layer_loaded=told), **options, keep_exact=False)
    expected = chunk(both)
    near = 1e-6 if kind == "pi0" else 0.02
    assert np.abs(chunk(loaded) - expected).max() <= near * np.abs(expected).max()
    assert both.runner.int8 is not None and loaded.runner.int8 is not None
    assert both.runner.int8.nbytes == loaded.runner.int8.nbytes
    exact = [name for name, group in products(loaded.policy.model).items() if not group[0].weight.is_meta]
    assert sorted(exact) == sorted(left) != []
    assert fingerprint(loaded.policy.model) == seen.model != fingerprint(model)
    for given_up_by in ({"calibration": str(other)}, {"calibration": ""}):
        with pytest.raises(ValueError, match=f"some weights in w8a8 by {path} alone"):
            Engine(loaded.policy, **{**options, **given_up_by}, keep_exact=False)


def test_a_calibration_of_another_network_is_refused_while_or_after_the_weights_are_loaded(
    tmp_path: Path,
) -> None:
    folder = make_checkpoint(tmp_path, make_config("pi05"))
    path = tmp_path / "calibration.safetensors"
    calibration(make_policy("pi0").model).write(path)
    read = Int8.of("w8a8", of_a_network_to_come(path))
    policy = load_policy(folder, layer_loaded=dropping("w8a8", CPU, int8=read, calibration=str(path)))
    with pytest.raises(ValueError, match=r"calibration\.safetensors .*vla calibrate"):
        Engine(policy, fast=True, precision="w8a8", calibration=str(path), keep_exact=False)
    assert read.calibration is not None
    fewer = replace(read.calibration, largest={})
    with pytest.raises(ValueError, match=r"it has no vision\.0\.qkv"):
        drop(load_policy(folder).model, "w8a8", CPU, Int8.of("w8a8", fewer), str(path))


def test_guidance_that_needs_the_plain_network_is_refused(tmp_path: Path) -> None:
    engine = Engine(make_policy("pi05"), fast=True, precision="int8", keep_exact=False)
    actions = torch.zeros(1, make_config("pi05").action_dim)
    guidance = Guidance(actions, 0, 1, jacobian="exact")
    with engine.observe(make_observation()) as prefix, pytest.raises(ValueError, match="exact Jacobian"):
        engine.act(prefix, guidance=guidance)


def test_a_policy_without_them_serves_no_engine_that_wants_them() -> None:
    policy = make_policy("pi05")
    Engine(policy, fast=True, precision="int8", keep_exact=False)
    for options in ({}, {"precision": "int8"}, {"precision": "int4", "keep_exact": False}):
        with pytest.raises(ValueError, match="int8 alone"):
            Engine(policy, fast=True, **options)
