"""A checkpoint folder is loaded whole or refused in one sentence, and known by what is in it; which errors
leave a GPU that can be used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import JOINTS, make_checkpoint, make_config, make_model, make_stats
from folders import edit_json, edit_weights, refused
from safetensors.torch import load_file, save_file
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.models.checkpoints.checksum import checksum
from vla_accel_ros.models.config import PI05, VisionConfig
from vla_accel_ros.models.device import device_fault
from vla_accel_ros.models.pi.infer_config import infer_config
from vla_accel_ros.models.pi.weights import EMBED_TOKENS, LM_HEAD, UNUSED

KINDS = ("pi0", "pi05")


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "policy", make_config(request.param))


def test_every_weight_arrives(folder: Path) -> None:
    policy = load_policy(folder)
    written = make_model(policy.config).state_dict()
    loaded = policy.model.state_dict()
    assert loaded.keys() == written.keys()
    for name, tensor in written.items():
        assert torch.equal(loaded[name], tensor), name
    assert not policy.model.training
    assert not any(parameter.requires_grad for parameter in policy.model.parameters())
    assert policy.joints == JOINTS
    assert not policy.delta_mask.any()


def test_the_file_may_change_afterwards(folder: Path) -> None:
    """The weights are the policy's own, not a window onto the file."""
    policy = load_policy(folder)
    file = folder / "model.safetensors"
    file.write_bytes(bytes(file.stat().st_size))
    assert torch.equal(policy.model.embed_table, make_model(policy.config).embed_table)


@pytest.mark.parametrize("names", [{LM_HEAD}, {EMBED_TOKENS}, {LM_HEAD, EMBED_TOKENS}])
def test_the_tied_tensor_under_either_name_or_both(folder: Path, names: set[str]) -> None:
    def rename(tensors: dict[str, Tensor]) -> None:
        tied = tensors.pop(LM_HEAD)
        tensors.update({name: tied.clone() for name in names})

    edit_weights(folder / "model.safetensors", rename)
    model = load_policy(folder).model
    assert torch.equal(model.embed_table, make_model(model.config).embed_table)
    assert model.paligemma_with_expert.paligemma.lm_head.weight is model.embed_table


@pytest.mark.parametrize("shards", [False, True])
def test_names_of_a_compiled_module_are_read_without_its_mark(folder: Path, shards: bool) -> None:
    """torch.compile puts `_orig_mod.` into them; a sharded folder's index has it, too."""
    file = folder / "model.safetensors"
    tensors = {f"_orig_mod.{name}": tensor for name, tensor in load_file(file).items()}
    if shards:
        file.unlink()
        file = folder / "model-00001-of-00001.safetensors"
        index = {"weight_map": dict.fromkeys(tensors, file.name)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file(tensors, file)
    model = load_policy(folder).model
    written = make_model(model.config).state_dict()
    assert all(torch.equal(tensor, written[name]) for name, tensor in model.state_dict().items())


def test_a_name_with_and_without_the_mark_of_a_compiled_module_is_refused(folder: Path) -> None:
    name = "_orig_mod.action_in_proj.bias"
    edit_weights(folder / "model.safetensors", lambda tensors: tensors.update({name: torch.zeros(1)}))
    refused(folder, f"unexpected ['{name}']")


def test_the_tied_tensor_must_be_one(folder: Path) -> None:
    edit_weights(
        folder / "model.safetensors", lambda tensors: tensors.update({EMBED_TOKENS: tensors[LM_HEAD] + 1})
    )
    refused(folder, LM_HEAD, EMBED_TOKENS, "differ")


def test_the_experts_unused_head_is_let_in_and_left_out(folder: Path) -> None:
    edit_weights(folder / "model.safetensors", lambda tensors: tensors.update({UNUSED: torch.zeros(3, 3)}))
    assert UNUSED not in load_policy(folder).model.state_dict()


def test_everything_wrong_with_the_weights_is_in_one_error(folder: Path) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        del tensors["action_in_proj.weight"], tensors[LM_HEAD]
        tensors["action_out_proj.bias"] = torch.zeros(5)
        tensors["extra.weight"] = torch.zeros(1)
        tensors["extra.bias"] = torch.zeros(1)

    edit_weights(folder / "model.safetensors", spoil)
    refused(
        folder,
        "model.safetensors",
        f"missing ['action_in_proj.weight', '{EMBED_TOKENS}']",
        "unexpected ['extra.bias', 'extra.weight']",
        "misshapen ['action_out_proj.bias [5] instead of [8]']",
    )


def test_bfloat16_keeps_what_openpi_keeps_in_float32(folder: Path) -> None:
    model = load_policy(folder, dtype=torch.bfloat16).model
    kept = {name for name, parameter in model.named_parameters() if parameter.dtype == torch.float32}
    wanted = {
        name
        for name, _ in model.named_parameters()
        if re.search(r"patch_embedding|position_embedding|^action_|^state_proj|^time_mlp", name)
        or re.search(r"(language_model|gemma_expert).*norm", name)
    }
    assert kept == wanted
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32, torch.bfloat16}


def test_sizes_are_inferred_without_our_config(kind: str, tmp_path: Path) -> None:
    vision = VisionConfig(width=72, depth=1, mlp=16, heads=1, image_size=28, patch=14)
    config = make_config(kind, vision=vision, horizon=10, image_names=PI05.image_names)
    folder = make_checkpoint(tmp_path, config)
    (folder / "config.json").write_text(json.dumps({"action_dim": 8, "action_horizon": 10}))
    inferred = describe(folder).config
    assert inferred == make_config(
        kind, vision=vision, horizon=10, image_names=PI05.image_names, max_prompt=48 if kind == "pi0" else 200
    )
    (folder / "config.json").unlink()
    assert describe(folder).horizon == 50


def test_published_shapes_are_inferred_as_the_presets() -> None:
    published = json.loads((Path(__file__).parents[2] / "data" / "openpi_parameters.json").read_text())
    for kind in KINDS:
        shapes = {
            name.replace("*", str(index)): tuple(shape)
            for name, (count, shape, _) in published[kind].items()
            for index in range(count)
        }
        config = infer_config(shapes, "model.safetensors")
        assert config.kind == kind
        assert config.vision == PI05.vision
        assert (config.prefix, config.expert) == (PI05.prefix, PI05.expert)
        assert (config.vocab, config.action_dim, config.horizon) == (257152, 32, 50)


def test_what_cannot_be_inferred_is_asked_for(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, "width of 24", "72", "config.json")
    edit_weights(folder / "model.safetensors", lambda tensors: tensors.pop("action_in_proj.weight"))
    refused(folder, "model.safetensors")


def test_config_json_is_checked(folder: Path) -> None:
    edit_json(folder / "config.json", lambda data: data["vla_accel_ros"].pop("horizon"))
    refused(folder, "config.json", "vla_accel_ros", "missing ['horizon']")
    (folder / "config.json").write_text("[]")
    refused(folder, "config.json", "holds a list")
    (folder / "config.json").write_text("{")
    refused(folder, "config.json", "not readable JSON")


def test_missing_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    refused(folder, "no tokenizer.json and no tokenizer.model")


def test_statistics_must_be_there_or_be_refused_explicitly(folder: Path) -> None:
    stats = folder / "assets" / "arm" / "norm_stats.json"
    stats.unlink()
    refused(folder, "assets has 0 norm_stats.json", "normalize=False")
    policy = load_policy(folder, normalize=False, delta_mask=np.zeros(3, bool))
    raw = torch.arange(16.0).reshape(2, 8)
    assert np.array_equal(policy.actions(raw, np.zeros(3)), raw[:, :3].numpy())


def test_several_statistics_need_a_name(folder: Path) -> None:
    other = folder / "assets" / "maker" / "other"
    other.mkdir(parents=True)
    (other / "norm_stats.json").write_text(
        json.dumps({"norm_stats": {"state": make_stats(joints=4), "actions": make_stats(joints=4)}})
    )
    refused(folder, "assets has 2 norm_stats.json and no asset was named", "['arm', 'maker/other']")
    refused(folder, "the asset 'leg' is not there", statistics="leg")
    assert load_policy(folder, statistics="maker/other").joints == 4
    assert load_policy(folder, statistics="arm").joints == JOINTS


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "must be a list of finite numbers"),
        ("wide", "must be a list of finite numbers"),
        ([], "must be a list of finite numbers"),
        ([0.1, float("nan"), 0.1, 0.1, 0.1, 0.1], "must be a list of finite numbers"),
        ([[0.1] * 6], "must be a list of finite numbers"),
        ([1.0] * 5, "compute the statistics again"),
        ([-9.0] * 6, "compute the statistics again"),
    ],
)
def test_statistics_are_checked(folder: Path, value: object, message: str) -> None:
    field = "std" if load_policy(folder).config.kind == "pi0" else "q99"
    path = folder / "assets" / "arm" / "norm_stats.json"
    edit_json(path, lambda data: data["norm_stats"]["actions"].update({field: value}))
    refused(folder, "norm_stats.json", "norm_stats.actions", message)
    edit_json(path, lambda data: data["norm_stats"]["actions"].pop(field))
    refused(folder, f"norm_stats.actions.{field}")


def test_statistics_of_more_actions_than_the_network_has_are_anothers(folder: Path) -> None:
    file = folder / "assets" / "arm" / "norm_stats.json"
    edit_json(file, lambda data: data["norm_stats"].update(actions=make_stats(joints=9)))
    refused(folder, "has statistics of actions with 9 numbers, but those of its network have 8")


def test_arguments_are_checked(folder: Path) -> None:
    refused(folder, "device is 'gpu'", device="gpu")
    refused(folder, "device is 'cuda:99'", device="cuda:99")
    refused(folder, "dtype is torch.float16", dtype=torch.float16)
    refused(folder, "prompt_state is 'full'", prompt_state="full")
    refused(folder, "delta_mask is int64 [6]", delta_mask=np.zeros(6, int))
    refused(folder, "delta_mask has 9 joints", delta_mask=np.zeros(9, bool))
    refused(folder, "delta_mask has 0 joints", delta_mask=np.zeros(0, bool))


def test_a_copy_is_the_same_checkpoint(tmp_path):
    model = make_checkpoint(tmp_path / "model")
    found = checksum(model)
    assert len(found) == 64 and found == checksum(model)
    shutil.copytree(model, tmp_path / "copy")
    os.utime(tmp_path / "copy" / "config.json", (0, 0))
    (tmp_path / "copy" / "README.md").write_text("notes")
    (tmp_path / "copy" / ".cache").mkdir()
    (tmp_path / "copy" / ".cache" / "lock").write_text("")
    assert checksum(tmp_path / "copy") == found


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "assets/arm/norm_stats.json"])
def test_one_bit_is_another_checkpoint(tmp_path, file):
    model = make_checkpoint(tmp_path / "model")
    found = checksum(model)
    content = bytearray((model / file).read_bytes())
    content[-1] ^= 1
    (model / file).write_bytes(content)
    assert checksum(model) != found


def test_another_name_is_another_checkpoint(tmp_path):
    model = make_checkpoint(tmp_path / "model")
    found = checksum(model)
    (model / "assets" / "arm").rename(model / "assets" / "leg")
    assert checksum(model) != found


def test_it_can_be_broken_off_and_needs_a_file(tmp_path):
    model = make_checkpoint(tmp_path / "model")
    assert checksum(model, lambda: True) == ""
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no file"):
        checksum(tmp_path / "empty")


SCRIPT = """
import torch
from vla_accel_ros.models.device import device_fault

def raised(what):
    try:
        what()
    except RuntimeError as error:
        return device_fault(error)
    raise SystemExit("nothing was raised")

ones = torch.ones(4, device="cuda")
assert not raised(lambda: ones + torch.ones(3, device="cuda"))
assert not raised(lambda: torch.empty(1 << 50, dtype=torch.uint8, device="cuda"))
assert not raised(lambda: ones + torch.ones(4))
assert (ones + ones).sum().item() == 8
assert raised(lambda: ones[torch.full((1,), 7, device="cuda")].cpu())  # a failed assertion in a kernel
assert raised(lambda: ones.cpu())
print("as expected")
"""


def test_an_error_on_a_cpu_is_no_fault_of_a_gpu():
    assert not device_fault(RuntimeError("CUDA error: device-side assert triggered"))
    assert not device_fault(ValueError("state has 3 values"))


@pytest.mark.gpu
def test_a_fault_in_a_kernel_lasts_and_wrong_shapes_and_too_much_memory_do_not():
    """In a process of its own, which nothing else can use after it."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "as expected" in done.stdout, done.stderr
