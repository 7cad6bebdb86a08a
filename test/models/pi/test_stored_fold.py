"""A fold beside the weights is the computed one to the bit, or it is not used."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import make_checkpoint, make_config, make_observation
from hypothesis import given, settings
from hypothesis import strategies as st
from lerobot_builders import make_lerobot_config, make_lerobot_folder
from stored_folds import DTYPES, KINDS, STEPS, computed, describe_fold, equal, model_of, rewrite, tensors
from torch import Tensor

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.models.checkpoints.conversion import Target, convert, verify
from vla_accel_ros.models.config import GemmaConfig, PiConfig
from vla_accel_ros.models.pi.folding import fold_expert
from vla_accel_ros.models.pi.stored_fold import sums_of

pytestmark = pytest.mark.usefixtures("warnings_are_errors")

MAKERS = {
    "openpi pi0": lambda folder: make_checkpoint(folder, make_config("pi0")),
    "openpi pi05": lambda folder: make_checkpoint(folder),
    "lerobot pi0": lambda folder: make_lerobot_folder(folder, make_lerobot_config("pi0")),
    "lerobot pi05": lambda folder: make_lerobot_folder(folder),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("maker", MAKERS)
def test_it_is_the_computed_one_to_the_bit(maker: str, dtype: str, tmp_path: Path) -> None:
    source = MAKERS[maker](tmp_path / "source")
    out = convert(source, tmp_path / "out", target=Target(steps=STEPS, dtype=dtype))
    policy, plain = load_policy(out, dtype=DTYPES[dtype]), load_policy(source, dtype=DTYPES[dtype])
    fold = policy.model.fold
    assert fold is not None and fold.key == (STEPS, plain.time_rule, dtype) and fold.fits(policy.model)
    assert plain.model.fold is None
    ours = fold_expert(policy.model, STEPS, policy.time_rule)
    assert equal(ours, fold_expert(plain.model, STEPS, plain.time_rule))


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    depth=st.integers(1, 3),
    heads=st.integers(1, 3),
    kv_heads=st.integers(1, 2),
    width=st.integers(3, 20),
    mlp=st.integers(3, 20),
    steps=st.integers(1, 5),
    dtype=st.sampled_from(list(DTYPES)),
)
def test_whatever_the_sizes(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    depth: int,
    heads: int,
    kv_heads: int,
    width: int,
    mlp: int,
    steps: int,
    dtype: str,
) -> None:
    folder = tmp_path_factory.mktemp("sizes")
    stack = GemmaConfig(
        width=2 * width, depth=depth, mlp=mlp, heads=heads * kv_heads, kv_heads=kv_heads, head_dim=6
    )
    source = make_checkpoint(folder / "source", make_config(kind, prefix=stack, expert=stack))
    out = convert(source, folder / "out", target=Target(steps=steps, dtype=dtype))
    ours, plain = model_of(out, DTYPES[dtype]), model_of(source, DTYPES[dtype])
    assert all(torch.equal(ours.state_dict()[name], value) for name, value in plain.state_dict().items())
    assert ours.fold is not None and ours.fold.fits(ours)
    assert equal(fold_expert(ours, steps), fold_expert(plain, steps))


@pytest.mark.parametrize("kind", KINDS)
def test_fast_stages_act_the_same_to_the_bit(kind: str, tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", make_config(kind))
    out = convert(source, tmp_path / "out", target=Target(steps=STEPS, dtype="float32"))
    actions = []
    for folder in (source, out):
        engine = Engine(load_policy(folder), steps=STEPS, fast=True)
        with engine.observe(make_observation()) as prefix:
            actions.append(engine.act(prefix).actions)
    assert np.array_equal(actions[0], actions[1])


def test_it_is_read_and_not_computed(with_fold: Path) -> None:
    """Zeros with sums that say so are taken."""

    def forge(file: dict[str, Tensor]) -> None:
        names = list(describe_fold(with_fold).layout)
        for name in ("out_bias", "in_weight"):
            file[name] = torch.zeros_like(file[name])
            file["sums"][names.index(name)] = sums_of([(name, file[name])])[name]

    rewrite(with_fold, forge)
    expert = fold_expert(model_of(with_fold), STEPS)
    assert not expert.out_bias.any() and not expert.in_weight.any() and expert.out_weight.any()


@pytest.mark.parametrize(
    ("steps", "rule", "dtype"),
    [(STEPS + 1, "openpi", "float32"), (STEPS, "lerobot", "float32"), (STEPS, "openpi", "bfloat16")],
)
def test_for_other_settings_it_is_computed(with_fold: Path, steps: int, rule: str, dtype: str) -> None:
    def zero(file: dict[str, Tensor]) -> None:
        for name in ("in_weight", "in_bias", "out_weight", "out_bias"):
            file[name].zero_()

    rewrite(with_fold, zero)
    model = model_of(with_fold, DTYPES[dtype])
    expert = fold_expert(model, steps, rule)
    assert expert.steps == steps and equal(expert, computed(model, steps, rule))


def test_matrices_of_a_pi0_are_those_of_any_number_of_steps(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", make_config("pi0"))
    model = model_of(convert(source, tmp_path / "out", target=Target(steps=STEPS, dtype="float32")))
    first, second = fold_expert(model, STEPS), fold_expert(model, 5)
    assert equal(second, computed(model, 5)) and equal(first, computed(model))
    assert equal(fold_expert(model, 5, like=first), second)
    again = fold_expert(model, 5, like=first)
    assert all(a.qkv is b.qkv for a, b in zip(first.layers, again.layers, strict=True))


def test_what_was_computed_of_other_weights_is_said_and_not_used(with_fold: Path, tmp_path: Path) -> None:
    config = describe(with_fold).config
    assert isinstance(config, PiConfig)
    other = make_checkpoint(tmp_path / "other", config, seed=1)
    shutil.copyfile(other / "model.safetensors", with_fold / "model.safetensors")
    model = model_of(with_fold)
    with pytest.warns(UserWarning, match=r"folded.safetensors was computed from other weights .* convert"):
        expert = fold_expert(model, STEPS)
    assert equal(expert, computed(model_of(other)))
    with pytest.raises(ValueError, match="is not what was converted"):
        verify(with_fold)


@pytest.mark.parametrize(
    "name", ["action_out_proj.bias", "expert.norm", "expert.layers.1.mlp.up_proj.weight"]
)
def test_a_model_that_changed_since_is_folded_anew(with_fold: Path, name: str) -> None:
    model = model_of(with_fold)
    target = model.action_out_proj.bias
    if name == "expert.norm":
        target = next(iter(model.expert.norm.parameters()))
    elif name.startswith("expert.layers"):
        target = model.expert.get_parameter(name.removeprefix("expert."))
    target.data.view(-1)[-1] += 1e-3
    with pytest.warns(UserWarning, match="other weights"):
        expert = fold_expert(model, STEPS)
    assert equal(expert, computed(model))


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_sums_find_every_single_change_on_any_block_size(data: st.DataObject) -> None:
    from vla_accel_ros.models.pi import stored_fold

    count = data.draw(st.integers(1, 40))
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
    values = torch.arange(float(count)).to(dtype)
    place, before = data.draw(st.integers(0, count - 1)), stored_fold._BLOCK
    stored_fold._BLOCK = data.draw(st.integers(1, 50))
    try:
        first = sums_of([("a", values), ("b", values[: place + 1])])
        changed = values.clone()
        changed[place] += data.draw(st.sampled_from([-1.0, 1.0, 256.0]))
        assert sums_of([("a", changed)])["a"] != first["a"]
        assert sums_of([("a", values.reshape(1, -1))])["a"] == first["a"]
    finally:
        stored_fold._BLOCK = before


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_takes_the_same_numbers(kind: str, tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", make_config(kind))
    out = convert(source, tmp_path / "out", target=Target(steps=STEPS, dtype="bfloat16"))
    here, there = (load_policy(out, device, torch.bfloat16).model for device in ("cpu", "cuda"))
    assert there.fold is not None and there.fold.fits(there)
    ours, theirs = tensors(fold_expert(there, STEPS)), tensors(fold_expert(here, STEPS))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))
