"""What is read as one is loaded as one and stored as one, and its parts are what they were."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import make_checkpoint, make_config
from folders import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from lerobot_builders import make_lerobot_folder
from openvla_builders import make_openvla_folder
from orbax_folder import answer, make_orbax_folder
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from smolvla_recording import make_smolvla_folder
from torch import nn

from vla_accel_ros.engine.stages.packed_stage import fuse_stack
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.checkpoints.conversion import convert, verify
from vla_accel_ros.models.checkpoints.safetensors_writer import DTYPES, write_safetensors
from vla_accel_ros.models.checkpoints.shards import FUSED, read_headers, read_table
from vla_accel_ros.models.checkpoints.streaming import read, same
from vla_accel_ros.models.layers.fused import fused_parts
from vla_accel_ros.models.openvla.policy import OpenVLAPolicy
from vla_accel_ros.models.pi.folding import fold_expert, fold_prefix
from vla_accel_ros.models.pi.model import Pi

ROOT = Path(__file__).resolve().parents[3]
MAKERS = {
    "openpi pi0": lambda folder: make_checkpoint(folder, make_config("pi0")),
    "openpi pi05": lambda folder: make_checkpoint(folder),
    "lerobot pi05": lambda folder: make_lerobot_folder(folder),
    "OpenVLA": lambda folder: make_openvla_folder(folder, shards=3),
    "JAX": lambda folder: make_orbax_folder(folder, "pi0"),
}
EXPERT = "paligemma_with_expert.gemma_expert.model.layers.0."
VISION = "paligemma_with_expert.paligemma.model.vision_tower.vision_model.encoder.layers.1.self_attn."


@pytest.fixture(params=[(maker, form) for maker in MAKERS for form in ("published", "converted", "plain")])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    maker, form = request.param
    source = MAKERS[maker](tmp_path / "source")
    if form == "published":
        return source
    return convert(source, tmp_path / "out", plain=form == "plain", trained_as=answer(source))


def places(model: nn.Module) -> dict[str, int]:
    return {name: parameter.data_ptr() for name, parameter in model.named_parameters()}


def test_stages_join_nothing_of_what_was_loaded(folder: Path) -> None:
    model = load_policy(folder, trained_as=answer(folder)).model
    before, parts = places(model), fused_parts(model)
    assert parts
    for names in parts.values():
        rows = [model.get_parameter(name) for name in names]
        assert len({row.untyped_storage().data_ptr() for row in rows}) == 1
        assert rows[0].untyped_storage().nbytes() == sum(row.nbytes for row in rows)
    if isinstance(model, Pi):
        fold_prefix(model)
        fold_expert(model, 2)
    else:
        fuse_stack(model.stack, model.config.prefix)
    assert places(model) == before


def test_a_part_can_be_changed_and_copied_by_itself(tmp_path: Path) -> None:
    model = load_policy(make_checkpoint(tmp_path / "source")).model
    save_file(dict(model.expert.state_dict()), tmp_path / "saved.safetensors")
    attention = model.expert.layers[0].self_attn
    before = attention.k_proj.weight.clone()
    attention.q_proj.weight.data.add_(1.0)
    assert torch.equal(attention.k_proj.weight, before)
    assert model.double().expert.layers[0].self_attn.k_proj.weight.dtype == torch.float64


def test_a_converted_file_has_one_tensor_and_says_its_parts(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    plain, out = (load_file(source / "model.safetensors"), convert(source, tmp_path / "out"))
    file = out / "model.safetensors"
    found, table = load_file(file), read_headers(file)
    qkv = [f"{EXPERT}self_attn.{name}_proj.weight" for name in "qkv"]
    gate_up = [f"{EXPERT}mlp.{name}_proj.weight" for name in ("gate", "up")]
    biases = [f"{VISION}{name}_proj.bias" for name in "qkv"]
    for whole, parts in (
        (f"{EXPERT}self_attn.qkv_proj.weight", qkv),
        (f"{EXPERT}mlp.gate_up_proj.weight", gate_up),
        (f"{VISION}qkv_proj.bias", biases),
    ):
        assert not set(parts) & set(found)
        assert torch.equal(found[whole], torch.cat([plain[part] for part in parts]))
        assert [table[part].part.tensor for part in parts] == [whole] * len(parts)
    with safe_open(str(file), framework="pt") as opened:
        assert list(json.loads(opened.metadata()[FUSED])[f"{EXPERT}self_attn.qkv_proj.weight"]) == qkv


def test_nothing_of_a_smolvla_is_fused(tmp_path: Path) -> None:
    out = convert(make_smolvla_folder(tmp_path / "source"), tmp_path / "out")
    assert all(stored.part is None for stored in read_table(out).values())
    assert {path.name for path in out.glob("*.safetensors")} - {"model.safetensors"} == {
        path.name for path in (tmp_path / "source").glob("policy_*.safetensors")
    }


def test_plain_has_a_tensor_for_each_parameter(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    plain = convert(
        convert(source, tmp_path / "out"), tmp_path / "plain", plain=True
    )  # and back from a converted one
    before, after = load_file(source / "model.safetensors"), load_file(plain / "model.safetensors")
    names = {"paligemma_with_expert.paligemma.lm_head.weight"}  # tied, and stored once under either name
    assert set(before) - names <= set(after)
    assert all(torch.equal(after[name], before[name]) for name in set(before) & set(after))
    assert [path.name for path in plain.glob("*.safetensors")] == ["model.safetensors"]
    said = json.loads((plain / "config.json").read_text())["provenance"]
    assert "folded" not in said and said["before"]["source"] == "source"
    assert verify(plain) == {"model.safetensors": said["sha256"]}


def test_parts_of_different_types_stay_apart(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    name = f"{EXPERT}self_attn.k_proj.weight"
    weights[name] = weights[name].bfloat16()
    save_file(weights, source / "model.safetensors")
    out = convert(source, tmp_path / "out")
    table = read_table(out)
    assert table[name].part is None and table[name].dtype == "BF16"
    assert table[f"{EXPERT}mlp.up_proj.weight"].part is not None
    before, after = load_policy(source).model.state_dict(), load_policy(out).model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())


@settings(max_examples=60)
@given(data=st.data())
def test_any_parts_in_any_order_come_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Written as they come, read by name, by rows and in any window."""
    values, fused = {}, {}
    for group in range(data.draw(st.integers(1, 4), label="groups")):
        dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
        columns, count = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
        names = [f"{group}.{part}" for part in range(count)]
        for name in names:
            rows = data.draw(st.integers(1, 6))
            values[name] = torch.arange(float(rows * columns)).reshape(rows, columns).to(dtype) + group
        if data.draw(st.booleans(), label="fused"):
            fused[f"whole {group}"] = data.draw(st.permutations(names))
    layout = {name: (DTYPES[value.dtype], tuple(value.shape)) for name, value in values.items()}
    order = data.draw(st.permutations(list(values)))
    file = tmp_path_factory.mktemp("parts") / "model.safetensors"
    write_safetensors(file, layout, ((name, values[name]) for name in order), fused=fused)
    table = read_headers(file)
    assert {name: (stored.dtype, stored.shape) for name, stored in table.items()} == layout
    found = {name: value.clone() for name, value in read(table, table)}
    assert found.keys() == values.keys()
    assert all(torch.equal(found[name], value) for name, value in values.items())
    assert all(same(table, name, name) for name in table)
    stored = load_file(file)
    for whole, names in fused.items():
        assert torch.equal(stored[whole], torch.cat([values[name] for name in names]))


@pytest.mark.parametrize(
    "said",
    [
        "nonsense",
        "[]",
        '{"a": [1]}',
        '{"a": {"b": 1.5}}',
        '{"a": {"b": 0, "c": 4}}',
        '{"a": {"b": true, "c": 3}}',
        '{"a": {"b": 1}}',
        '{"a": {"b": 9}}',
        '{"gone": {"b": 4}}',
        '{"a": {"other": 4}}',
        "[" * 3000,
    ],
)
def test_a_header_with_other_parts_than_are_there_is_refused(tmp_path: Path, said: str) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(4, 2), "other": torch.zeros(1)}, file, {FUSED: said})
    with pytest.raises(ValueError, match=r"vla_accel_ros.fused of its header") as caught:
        read_headers(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_parts_that_do_not_fit_the_model_are_named(tmp_path: Path) -> None:
    out = convert(make_checkpoint(tmp_path / "source"), tmp_path / "out")
    file, name = out / "model.safetensors", f"{EXPERT}self_attn.qkv_proj.weight"
    with safe_open(str(file), framework="pt") as opened:
        said = json.loads(opened.metadata()[FUSED])
    parts = said[name]
    first, second, third = parts
    parts[first], parts[second] = parts[first] - 1, parts[second] + 1
    found = load_file(file)
    save_file(found, file, {FUSED: json.dumps(said)})
    refused(out, "misshapen", first, second)
    said[name] = {first: sum(parts.values()) - 1, third: 1}
    save_file(found, file, {FUSED: json.dumps(said)})
    refused(out, "missing", second)
    save_file(found, file)
    refused(out, "missing", first, "unexpected", name)


@pytest.fixture(scope="module", params=["OpenVLA", "openpi pi0", "OpenVLA, published"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, converted or as it is published; not to be changed."""
    name, _, published = request.param.partition(", ")
    folder = tmp_path_factory.mktemp("whole")
    source = make_openvla_folder(folder / "source") if published else MAKERS[name](folder / "source")
    return source if published else convert(source, folder / "out")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_loads_finite_numbers(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any bytes overwritten, most of them in the header, any end cut off."""
    out = Path(shutil.copytree(whole, tmp_path_factory.mktemp("damaged") / "out"))
    file = out / data.draw(st.sampled_from(["model.safetensors", "config.json", "tokenizer.json"]))
    content = bytearray(file.read_bytes())
    if data.draw(st.booleans(), label="cut"):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        start = data.draw(st.integers(0, min(len(content), 20_000) - 1))
        junk = data.draw(st.binary(min_size=1, max_size=16))
        content[start : start + len(junk)] = junk
    file.write_bytes(bytes(content))
    try:
        policy = load_policy(out)
    except ValueError as error:
        assert str(out) in str(error) and "\n" not in str(error)
        return
    assert all(bool(parameter.isfinite().all()) for parameter in policy.model.parameters())
    assert not isinstance(policy, OpenVLAPolicy) or np.isfinite(policy.stats.low).all()


MEASURE = """
import sys, torch
from pathlib import Path
sys.path.insert(0, {tests!r})
from vla_accel_ros.models.checkpoints import streaming
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.models.checkpoints.conversion import convert

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

torch.set_num_threads(1)
streaming.WINDOW = {window}
small, large, out = Path({small!r}), Path({large!r}), Path({out!r})
convert(small, small.parent / "warm")
load_policy(small.parent / "warm")
before = status("VmRSS")
convert(large, out)
print(status("VmHWM") - before)
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
policy = load_policy(out)
kept = sum(parameter.nbytes for parameter in policy.model.parameters())
print(status("VmHWM") - before - kept)
"""


def test_neither_converting_nor_loading_holds_more_than_a_window(tmp_path: Path) -> None:
    """The windows are as large as the shards; the weights are several of them. Two windows would be too much,
    for which what the interpreter takes and gives back meanwhile, whatever the sizes, leaves room."""
    config = make_config("pi0")
    stack = replace(config.prefix, width=640, mlp=2560, depth=4, head_dim=128)
    wide = replace(config, prefix=stack, expert=replace(stack, width=64, mlp=256))
    small, large = make_checkpoint(tmp_path / "small", config), make_checkpoint(tmp_path / "large", wide)
    total = (large / "model.safetensors").stat().st_size
    window = 24 << 20
    assert total > 3 * window
    code = MEASURE.format(
        tests=str(ROOT / "test"), window=window, small=str(small), large=str(large), out=str(tmp_path / "out")
    )
    environment = {"PYTHONPATH": ":".join([str(ROOT), *filter(None, sys.path)]), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    converting, loading = map(int, ran.stdout.split())
    most = 1.2 * window + (12 << 20)
    assert most < 2 * window
    assert converting <= most, f"{converting / 1e6:.0f} MB to convert {total / 1e6:.0f} MB"
    assert loading <= most, f"{loading / 1e6:.0f} MB beside the model of {total / 1e6:.0f} MB"
