"""A fold beside the weights is the computed one to the bit, or it is not used."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import make_checkpoint, make_config, make_observation
from folders import edit_weights, refused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lerobot_builders import make_lerobot_config, make_lerobot_folder
from safetensors.torch import load_file
from torch import Tensor

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoint import describe, load_policy
from vla_accel_ros.models.config import GemmaConfig, PiConfig
from vla_accel_ros.models.conversion import Target, convert, verify
from vla_accel_ros.models.folded import Expert
from vla_accel_ros.models.folding import fold_expert
from vla_accel_ros.models.pi import Pi
from vla_accel_ros.models.stored_fold import FOLDED, StoredFold, sums_of

STEPS = 3
KINDS = ("pi0", "pi05")
MAKERS = {
    "openpi pi0": lambda folder: make_checkpoint(folder, make_config("pi0")),
    "openpi pi05": lambda folder: make_checkpoint(folder),
    "lerobot pi0": lambda folder: make_lerobot_folder(folder, make_lerobot_config("pi0")),
    "lerobot pi05": lambda folder: make_lerobot_folder(folder),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(autouse=True)
def warnings_are_errors() -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


@pytest.fixture(scope="module", params=KINDS)
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fold of STEPS in float32; not to be changed."""
    folder = tmp_path_factory.mktemp(request.param)
    source = make_checkpoint(folder / "source", make_config(request.param))
    return convert(source, folder / "out", target=Target(steps=STEPS, dtype="float32"))


@pytest.fixture
def folder(converted: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(converted, tmp_path / "copy"))


def model_of(folder: Path, dtype: torch.dtype = torch.float32) -> Pi:
    return load_policy(folder, dtype=dtype).model


def computed(model: Pi, steps: int = STEPS, rule: str = "openpi") -> Expert:
    """As if there were no file."""
    fold, model.fold = model.fold, None
    expert = fold_expert(model, steps, rule)
    model.fold = fold
    return expert


def tensors(expert: object) -> list[Tensor]:
    """Every tensor, wherever it is."""
    if isinstance(expert, Tensor):
        return [expert]
    if is_dataclass(expert):
        return [tensor for field in fields(expert) for tensor in tensors(getattr(expert, field.name))]
    return [tensor for part in expert for tensor in tensors(part)] if isinstance(expert, tuple) else []


def equal(one: Expert, other: Expert) -> bool:
    mine, theirs = tensors(one), tensors(other)
    return len(mine) == len(theirs) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)
    )


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


def test_it_is_read_and_not_computed(folder: Path) -> None:
    """Zeros with sums that say so are taken."""

    def forge(file: dict[str, Tensor]) -> None:
        names = list(describe_fold(folder).layout)
        for name in ("out_bias", "in_weight"):
            file[name] = torch.zeros_like(file[name])
            file["sums"][names.index(name)] = sums_of([(name, file[name])])[name]

    rewrite(folder, forge)
    expert = fold_expert(model_of(folder), STEPS)
    assert not expert.out_bias.any() and not expert.in_weight.any() and expert.out_weight.any()


def describe_fold(folder: Path) -> StoredFold:
    config = describe(folder).config
    assert isinstance(config, PiConfig)
    fold = StoredFold.find(folder, config)
    assert fold is not None
    return fold


def rewrite(folder: Path, change: object) -> None:
    """Change the fold's numbers and keep its header's words."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    file = folder / FOLDED
    with safe_open(str(file), framework="pt") as opened:
        said = opened.metadata()
    found = load_file(file)
    change(found)  # type: ignore[operator]
    save_file(found, file, said)


@pytest.mark.parametrize(
    ("steps", "rule", "dtype"),
    [(STEPS + 1, "openpi", "float32"), (STEPS, "lerobot", "float32"), (STEPS, "openpi", "bfloat16")],
)
def test_for_other_settings_it_is_computed(folder: Path, steps: int, rule: str, dtype: str) -> None:
    def zero(file: dict[str, Tensor]) -> None:
        for name in ("in_weight", "in_bias", "out_weight", "out_bias"):
            file[name].zero_()

    rewrite(folder, zero)
    model = model_of(folder, DTYPES[dtype])
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


def test_what_was_computed_of_other_weights_is_said_and_not_used(folder: Path, tmp_path: Path) -> None:
    other = make_checkpoint(tmp_path / "other", describe(folder).config, seed=1)
    shutil.copyfile(other / "model.safetensors", folder / "model.safetensors")
    model = model_of(folder)
    with pytest.warns(UserWarning, match=r"folded.safetensors was computed from other weights .* convert"):
        expert = fold_expert(model, STEPS)
    assert equal(expert, computed(model_of(other)))
    with pytest.raises(ValueError, match="is not what was converted"):
        verify(folder)


@pytest.mark.parametrize(
    "name", ["action_out_proj.bias", "expert.norm", "expert.layers.1.mlp.up_proj.weight"]
)
def test_a_model_that_changed_since_is_folded_anew(folder: Path, name: str) -> None:
    model = model_of(folder)
    target = model.action_out_proj.bias
    if name == "expert.norm":
        target = next(iter(model.expert.norm.parameters()))
    elif name.startswith("expert.layers"):
        target = model.expert.get_parameter(name.removeprefix("expert."))
    target.data.view(-1)[-1] += 1e-3
    with pytest.warns(UserWarning, match="other weights"):
        expert = fold_expert(model, STEPS)
    assert equal(expert, computed(model))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_one_is_refused_or_not_used(
    converted: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any bytes overwritten, any end cut off: one sentence, or the numbers that would be computed."""
    folder = Path(shutil.copytree(converted, tmp_path_factory.mktemp("damaged") / "copy"))
    whole = bytearray((folder / FOLDED).read_bytes())
    if data.draw(st.booleans(), label="cut"):
        whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        start = data.draw(st.integers(0, len(whole) - 1))
        junk = data.draw(st.binary(min_size=1, max_size=8))
        whole[start : start + len(junk)] = junk
    (folder / FOLDED).write_bytes(bytes(whole))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            model = model_of(folder)
            expert = fold_expert(model, STEPS)
        except ValueError as error:
            assert str(folder / FOLDED) in str(error) and "\n" not in str(error)
            return
    assert equal(expert, computed(model))


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_one_changed_bit_is_found(folder: Path, place: str) -> None:
    def flip(file: dict[str, Tensor]) -> None:
        numbers = file["out_weight"].view(torch.int32).view(-1)
        numbers[{"first": 0, "middle": len(numbers) // 2, "last": -1}[place]] ^= 1

    rewrite(folder, flip)
    with pytest.raises(
        ValueError, match=r"folded.safetensors is damaged: out_weight .* convert the checkpoint"
    ):
        fold_expert(model_of(folder), STEPS)
    with pytest.raises(ValueError, match=r"folded.safetensors is not what was converted"):
        verify(folder)


def test_a_truncated_one_keeps_the_folder_from_being_loaded(folder: Path) -> None:
    file = folder / FOLDED
    file.write_bytes(file.read_bytes()[:-1])
    refused(folder, str(file), "is not a readable safetensors file")
    assert [str(file) in sentence for sentence in describe(folder).missing] == [True]
    with pytest.raises(ValueError, match="is not a readable safetensors file"):
        convert(folder, folder.with_name("again"))
    assert not folder.with_name("again").exists()


def test_one_of_other_sizes_is_refused(folder: Path, tmp_path: Path) -> None:
    kind = describe(folder).config.kind
    stack = GemmaConfig(width=24, depth=1, mlp=48, heads=4, kv_heads=1, head_dim=8)
    prefix = GemmaConfig(width=32, depth=1, mlp=64, heads=4, kv_heads=1, head_dim=8)
    other = make_checkpoint(tmp_path / "other", make_config(kind, expert=stack, prefix=prefix))
    out = convert(other, tmp_path / "out", target=Target(steps=STEPS, dtype="float32"))
    shutil.copyfile(out / FOLDED, folder / FOLDED)
    refused(folder, str(folder / FOLDED), "does not fit", "remove it")


@pytest.mark.parametrize(
    "said", ["", "[]", "{}", '{"steps": true, "time_rule": "openpi", "dtype": "float32"}', "[" * 2000]
)
def test_a_header_that_says_nothing_is_refused(folder: Path, said: str) -> None:
    from safetensors.torch import save_file

    save_file(load_file(folder / FOLDED), folder / FOLDED, {"vla_accel_ros.folded": said})
    refused(folder, str(folder / FOLDED), "does not say in its header", "remove it")


def test_a_link_out_of_the_folder_is_refused(folder: Path) -> None:
    away = shutil.move(folder / FOLDED, folder.parent / "elsewhere")
    (folder / FOLDED).symlink_to(away)
    refused(folder, FOLDED, "outside of its folder")


def test_without_it_everything_is_computed_and_verify_says_so(folder: Path) -> None:
    (folder / FOLDED).unlink()
    model = model_of(folder)
    assert model.fold is None and equal(fold_expert(model, STEPS), computed(model))
    with pytest.raises(ValueError, match=r"folded.safetensors is not there, but .*config.json names it"):
        verify(folder)


def test_one_that_the_provenance_does_not_name_is_found_by_verify(folder: Path) -> None:
    file = folder / "config.json"
    said = json.loads(file.read_text())
    del said["provenance"]["folded"]
    file.write_text(json.dumps(said))
    with pytest.raises(ValueError, match=r"folded.safetensors is there, but .*config.json does not name it"):
        verify(folder)


def test_edited_weights_of_its_own_folder_are_noticed(folder: Path) -> None:
    def retrain(weights: dict[str, Tensor]) -> None:
        weights["action_in_proj.weight"][0, 0] += 0.5

    source = convert(folder, folder.with_name("plain"), target=Target(plain=True))
    edit_weights(source / "model.safetensors", retrain)
    shutil.copyfile(folder / FOLDED, source / FOLDED)
    with pytest.warns(UserWarning, match="computed from other weights"):
        expert = fold_expert(model_of(source), STEPS)
    assert equal(expert, computed(model_of(source)))


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_sums_find_every_single_change_on_any_block_size(data: st.DataObject) -> None:
    from vla_accel_ros.models import stored_fold

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
