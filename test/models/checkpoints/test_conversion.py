"""A converted folder loads the same policy to the bit, says where it comes from, and replaces nothing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import make_checkpoint, make_config, make_observation, make_stats
from lerobot_builders import make_lerobot_config, make_lerobot_folder
from openvla_builders import make_openvla_folder, make_openvla_observation
from orbax_folder import answer, make_orbax_folder
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from smolvla_recording import Case, make_smolvla_folder

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.models.checkpoints.checksum import sha256
from vla_accel_ros.models.checkpoints.conversion import convert, verify
from vla_accel_ros.models.checkpoints.safetensors_writer import write_safetensors
from vla_accel_ros.models.pi.weights import EMBED_TOKENS, LM_HEAD
from vla_accel_ros.types import Observation


def half(folder: Path) -> Path:
    """Weights stored in bfloat16, as most published ones are."""
    for file in folder.glob("model*.safetensors"):
        save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    return folder


MAKERS = {
    "openpi pi0": lambda folder: make_checkpoint(folder, make_config("pi0")),
    "openpi pi05": lambda folder: half(make_checkpoint(folder)),
    "lerobot pi0": lambda folder: make_lerobot_folder(folder, make_lerobot_config("pi0"), relative=True),
    "lerobot pi05": lambda folder: make_lerobot_folder(folder, tied=(LM_HEAD, EMBED_TOKENS)),
    "OpenVLA": lambda folder: half(make_openvla_folder(folder, shards=3)),
    "SmolVLA": lambda folder: make_smolvla_folder(folder),
    "JAX": lambda folder: make_orbax_folder(folder, "pi05"),
}


@pytest.fixture(params=MAKERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return MAKERS[request.param](tmp_path / "source")


def seen(folder: Path) -> Observation:
    kind = describe(folder).config.kind
    if kind == "openvla":
        return make_openvla_observation()
    if kind == "smolvla":
        return Case(0).observation
    return make_observation(cameras=describe(folder).config.image_names[:2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_loaded_is_the_same_to_the_bit(folder: Path, dtype: torch.dtype, tmp_path: Path) -> None:
    out = convert(folder, tmp_path / "converted", trained_as=answer(folder))
    before, after = load_policy(folder, dtype=dtype, trained_as=answer(folder)), load_policy(out, dtype=dtype)
    weights = after.model.state_dict()
    for name, tensor in before.model.state_dict().items():
        assert torch.equal(weights[name], tensor), name
    observation, actions = seen(folder), []
    for policy in (before, after):
        engine = Engine(policy, steps=2)
        assert engine.runner.time_rule == before.time_rule
        with engine.observe(observation) as prefix:
            actions.append(engine.act(prefix).actions)
    assert np.array_equal(actions[0], actions[1])


def test_numbers_are_kept_as_they_are_stored(folder: Path, tmp_path: Path) -> None:
    out = convert(folder, tmp_path / "converted", trained_as=answer(folder))
    source, target = describe(folder, trained_as=answer(folder)), describe(out)
    assert {stored.dtype for stored in target.tensors.values()} == {
        stored.dtype for stored in source.tensors.values()
    }
    assert {stored.file for stored in target.tensors.values()} == {out / "model.safetensors"}
    assert (target.config, target.missing) == (source.config, ())
    np.testing.assert_array_equal(target.actions, source.actions)
    np.testing.assert_array_equal(target.relative, source.relative)


def test_it_says_where_it_comes_from(folder: Path, tmp_path: Path) -> None:
    out = convert(folder, tmp_path / "converted", trained_as=answer(folder))
    said = json.loads((out / "config.json").read_text())["provenance"]
    assert (said["source"], said["format"]) == ("source", describe(folder).format)
    assert said["sha256"] == hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    for name, digest in said["source_sha256"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
    weights = {path.relative_to(folder).as_posix() for path in folder.rglob("model*.safetensors")}
    weights |= {p.relative_to(folder).as_posix() for p in folder.glob("params/**/*") if p.is_file()}
    assert weights <= said["source_sha256"].keys()
    assert said["version"] and said["date"].endswith("+00:00")
    assert verify(out) == {"model.safetensors": said["sha256"]}


def test_converting_again_changes_nothing(folder: Path, tmp_path: Path) -> None:
    once = convert(folder, tmp_path / "once", trained_as=answer(folder))
    twice = convert(once, tmp_path / "twice")
    before, after = (load_file(out / "model.safetensors") for out in (once, twice))
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_progress_is_told_to_the_end(folder: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    out = convert(
        folder, tmp_path / "out", lambda done, total: told.append((done, total)), trained_as=answer(folder)
    )
    assert told[-1][0] == told[-1][1] == describe(out).bytes
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    out = convert(make_checkpoint(tmp_path / "source"), tmp_path / "out")
    file = out / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match="converted"):
        verify(out)
    with pytest.raises(ValueError, match=r"has no provenance\.sha256"):
        verify(tmp_path / "source")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source, out = make_checkpoint(tmp_path / "source"), tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("kept")
    for taken in (out, source, out / "mine"):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(FileExistsError, match="already"):
            convert(source, taken)
        assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_what_cannot_be_loaded_leaves_nothing(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["action_out_proj.bias"][0] = float("inf")
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(ValueError, match="finite in action_out_proj"):
        convert(source, tmp_path / "out")
    del tensors["action_out_proj.bias"]
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(ValueError, match=r"missing \['action_out_proj.bias'\]"):
        convert(source, tmp_path / "out")
    with pytest.raises(ValueError, match=r"/nothing .*folder"):
        convert(tmp_path / "nothing", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_constants_that_a_former_version_stored_are_ignored(tmp_path: Path) -> None:
    out = convert(make_checkpoint(tmp_path / "source"), tmp_path / "out")
    save_file({"in_bias": torch.full((3, 8), torch.nan)}, out / "folded.safetensors")
    assert describe(out).missing == () and verify(out).keys() == {"model.safetensors"}
    load_policy(out)


def test_several_statistics_stay_several(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    other = source / "assets" / "maker" / "other"
    other.mkdir(parents=True)
    stats = {"norm_stats": {"state": make_stats(joints=4), "actions": make_stats(joints=4)}}
    (other / "norm_stats.json").write_text(json.dumps(stats))
    out = convert(source, tmp_path / "out")
    assert describe(out).statistics == ("arm", "maker/other")
    assert load_policy(out, statistics="maker/other").joints == 4


def test_the_file_is_one_that_the_library_reads(tmp_path: Path) -> None:
    tensors = {
        "b": torch.arange(6.0).reshape(2, 3),
        "a": torch.ones(3, dtype=torch.bfloat16),
        "one": torch.tensor(2.5, dtype=torch.float64),
        "none": torch.zeros(0, 4, dtype=torch.float16),
    }
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float64: "F64", torch.float16: "F16"}
    layout = {name: (names[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}
    file = tmp_path / "x.safetensors"
    digest = write_safetensors(file, layout, tensors.items(), {"made": "here"})
    assert digest == sha256(file)
    loaded = load_file(file)
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    with safe_open(str(file), framework="pt") as opened:
        assert opened.metadata() == {"format": "pt", "made": "here"}
    with pytest.raises(FileExistsError):
        write_safetensors(file, layout, tensors.items())
    assert sha256(file) == digest


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([("b", torch.zeros(2)), ("b", torch.zeros(2))], "b is not in the layout, or came twice"),
        ([("a", torch.zeros(3))], r"a is torch.float32 \[3\], not"),
        ([("a", torch.zeros(2, dtype=torch.float64))], "a is torch.float64"),
        ([("a", torch.zeros(2))], "b did not come"),
        ([("a", torch.zeros(2)), ("b", torch.zeros(2)), ("c", torch.zeros(2))], "c is not in the layout"),
    ],
)
def test_other_values_than_the_layouts_are_refused(tmp_path: Path, values, message: str) -> None:
    layout = {"a": ("F32", (2,)), "b": ("F32", (2,))}
    with pytest.raises(ValueError, match=message):
        write_safetensors(tmp_path / "x", layout, values)
    assert not list(tmp_path.iterdir())
