"""An OpenVLA folder is loaded whole or refused in one sentence."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import make_checkpoint
from folders import edit_json, edit_weights, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from openvla_builders import (
    make_norm_stats,
    make_openvla,
    make_openvla_config,
    make_openvla_folder,
    make_published_config,
    make_tensors,
    write_weights,
)
from safetensors.torch import save_file
from torch import Tensor

from vla_accel_ros.models.checkpoints import streaming
from vla_accel_ros.models.checkpoints.checkpoint import find_format, load_policy
from vla_accel_ros.models.checkpoints.formats import Contents
from vla_accel_ros.models.openvla.policy import OpenVLAPolicy, PixelNorm

HEAD = "language_model.lm_head.weight"
NORM = "language_model.model.norm.weight"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_openvla_folder(tmp_path / "openvla")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return make_openvla_folder(tmp_path / "openvla", shards=3)


def load(folder: Path, statistics: str | None = None) -> OpenVLAPolicy:
    policy = load_policy(folder, statistics=statistics)
    assert isinstance(policy, OpenVLAPolicy)
    return policy


def is_openvla(folder: Path) -> bool:
    return find_format(Contents.of(folder)).name == "OpenVLA"


def shard(folder: Path, number: int) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[number]


@pytest.mark.parametrize("shards", [0, 1, 4])
def test_every_weight_arrives_from_one_file_or_several(tmp_path: Path, shards: int) -> None:
    policy = load_policy(make_openvla_folder(tmp_path, seed=4, shards=shards))
    written, loaded = make_openvla(seed=4).state_dict(), policy.model.state_dict()
    assert loaded.keys() == written.keys()
    for name, tensor in written.items():
        assert torch.equal(loaded[name], tensor), name
    assert not policy.model.training
    assert not any(parameter.requires_grad for parameter in policy.model.parameters())
    assert policy.joints == 7


def test_weights_are_the_policys_own(folder: Path) -> None:
    model = load_policy(folder).model
    before = model.language_model.lm_head.weight.clone()
    file = folder / "model.safetensors"
    file.write_bytes(bytes(file.stat().st_size))
    assert torch.equal(model.language_model.lm_head.weight, before)


def test_bfloat16_is_every_parameters_dtype(folder: Path) -> None:
    edit_weights(folder / "model.safetensors", lambda tensors: tensors.update({NORM: tensors[NORM].half()}))
    model = load_policy(folder, dtype=torch.bfloat16).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in load_policy(folder).model.parameters()} == {torch.float32}


def test_progress_is_told_to_the_end(sharded: Path) -> None:
    told: list[tuple[int, int]] = []
    load_policy(sharded, progress=lambda done, total: told.append((done, total)))
    parameters = list(make_openvla().parameters())
    total = sum(parameter.nbytes for parameter in parameters)
    assert len(told) == len(parameters)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (total, total)
    assert {total_ for _, total_ in told} == {total}


@pytest.mark.parametrize("window", [1, 5000, 30_000])
def test_files_are_opened_anew_after_a_window(
    sharded: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its size, also one smaller than a tensor, every weight arrives once."""
    whole = load_policy(sharded).model.state_dict()
    monkeypatch.setattr(streaming, "WINDOW", window)
    told: list[int] = []
    loaded = load_policy(sharded, progress=lambda done, total: told.append(done)).model.state_dict()
    assert len(told) == len(set(told)) == len(whole)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in whole.items())


def test_what_no_path_reads_may_be_left_out(folder: Path) -> None:
    tensors = make_openvla().state_dict()
    save_file(dict(tensors), folder / "model.safetensors")
    assert load_policy(folder).model.state_dict().keys() == tensors.keys()


def test_everything_wrong_with_the_weights_is_in_one_error(sharded: Path) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            if name == HEAD:
                del tensors[name]
            elif name == NORM:
                tensors[name] = torch.zeros(5)
            elif name == "projector.fc3.bias":
                tensors[name] = torch.zeros(32, dtype=torch.int8)
        tensors["projector.fc4.bias"] = torch.zeros(1)

    for number in range(3):
        edit_weights(shard(sharded, number), spoil)
    refused(
        sharded,
        f"{sharded} does not fit the model",
        f"missing ['{HEAD}']",
        "unexpected ['projector.fc4.bias']",
        f"misshapen ['{NORM} [5] instead of [32]']",
        "not floating point ['projector.fc3.bias I8']",
    )


@settings(max_examples=20)
@given(st.data())
def test_no_tensor_may_be_missing_or_of_another_shape(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    config = make_openvla_config()
    names = sorted(make_openvla().state_dict())
    lost = data.draw(st.sets(st.sampled_from(names), max_size=3))
    bent = data.draw(
        st.sets(st.sampled_from(sorted(set(names) - lost)), min_size=0 if lost else 1, max_size=3)
    )
    tensors = {name: tensor for name, tensor in make_tensors(config).items() if name not in lost}
    tensors |= {name: tensors[name][..., :-1].contiguous() for name in bent}
    folder = make_openvla_folder(tmp_path_factory.mktemp("openvla"))
    write_weights(folder, tensors)
    refused(
        folder, f"missing {sorted(lost)}", *(f"{name} {list(tensors[name].shape)} instead" for name in bent)
    )


def test_numbers_that_are_not_finite_are_named(sharded: Path) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        for name, value in ((HEAD, float("nan")), (NORM, float("inf"))):
            if name in tensors:
                tensors[name].flatten()[3] = value

    for number in range(3):
        edit_weights(shard(sharded, number), spoil)
    refused(sharded, "not every number is finite", HEAD, NORM)


def test_files_that_are_not_whole_are_refused(sharded: Path) -> None:
    file = shard(sharded, 1)
    content = file.read_bytes()
    for broken in (content[:-5], content[:3], b"", pickle.dumps({HEAD: [1.0]})):
        file.write_bytes(broken)
        refused(sharded, file.name, "not a readable safetensors file", "copy it again")
    file.unlink()
    refused(sharded, INDEX, f"names ['{file.name}'], which are not there")


@pytest.mark.parametrize(
    "value",
    ["../model.safetensors", "/etc/model.safetensors", "model.bin", "", 3, None, ["a"]],
)
def test_an_index_names_files_beside_it_and_no_others(sharded: Path, value: object) -> None:
    edit_json(sharded / INDEX, lambda data: data["weight_map"].update({HEAD: value}))
    refused(sharded, INDEX, f"field weight_map.{HEAD} is {value!r}")


def test_an_index_is_checked(sharded: Path) -> None:
    for content, part in (("{}", "field weight_map"), ("[]", "holds a list"), ("{", "not readable JSON")):
        (sharded / INDEX).write_text(content)
        refused(sharded, INDEX, part)


def test_a_tensor_that_the_index_promises_must_be_there(sharded: Path) -> None:
    where = json.loads((sharded / INDEX).read_text())["weight_map"][HEAD]
    edit_weights(sharded / where, lambda tensors: tensors.pop(HEAD))
    refused(sharded, f"missing ['{HEAD}']")


def test_pickles_are_not_opened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(make_tensors(make_openvla_config())))
    refused(folder, "['pytorch_model.bin']", "pickled files are never opened")


def test_the_folder_and_the_arguments_are_checked(folder: Path) -> None:
    refused(folder / "nowhere", "is not a folder")
    refused(folder, "device is 'cuda:99'", device="cuda:99")
    refused(folder, "dtype is torch.float16", dtype=torch.float16)
    (folder / "tokenizer.json").unlink()
    refused(folder, "no tokenizer.json")


def test_config_json_is_checked(folder: Path) -> None:
    edit_json(folder / "config.json", lambda data: data["vla_accel_ros"].pop("bins"))
    refused(folder, "config.json, field vla_accel_ros: ", "missing ['bins']")
    (folder / "config.json").write_text(json.dumps(make_published_config()))
    refused(folder, "config.json: a tower of width 24 does not tell the number of heads")
    edit_json(folder / "config.json", lambda data: data.update(arch_specifier="linear"))
    refused(folder, "config.json: arch_specifier is 'linear'; only 'no-align+fused-gelu-mlp' is known.")
    (folder / "config.json").unlink()
    refused(folder, "config.json: a tower of width 24 does not tell the number of heads")


def test_a_folder_says_that_it_is_an_openvla(folder: Path, tmp_path: Path) -> None:
    assert is_openvla(folder)
    edit_json(folder / "config.json", lambda data: data.pop("model_type"))
    assert is_openvla(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "openvla"}))
    assert is_openvla(folder)
    assert not is_openvla(make_checkpoint(tmp_path / "pi"))


def test_statistics_of_several_data_sets_need_a_name(folder: Path) -> None:
    stats = make_norm_stats("bridge_orig", "kuka", seed=3)
    edit_json(folder / "config.json", lambda data: data.update(norm_stats=stats))
    refused(folder, "2 datasets and no dataset was named; name one of ['bridge_orig', 'kuka']")
    refused(folder, "the dataset 'viola' is not there", statistics="viola")
    ours = load(folder, "kuka").stats
    assert ours.low.tolist() == stats["kuka"]["action"]["q01"]
    assert ours.high.tolist() == stats["kuka"]["action"]["q99"]
    assert ours.mask.tolist() == [True] * 6 + [False]
    edit_json(folder / "config.json", lambda data: data.pop("norm_stats"))
    refused(folder, "config.json has statistics of 0 datasets")


def test_fine_tunings_statistics_replace_the_published_ones(folder: Path) -> None:
    stats = make_norm_stats("my_robot", seed=8)
    (folder / "dataset_statistics.json").write_text(json.dumps(stats))
    assert load(folder).stats.low.tolist() == stats["my_robot"]["action"]["q01"]
    (folder / "dataset_statistics.json").write_text("{}")
    refused(folder, "dataset_statistics.json has statistics of 0 datasets")


def test_without_a_mask_every_action_is_normalised(folder: Path) -> None:
    edit_json(folder / "config.json", lambda data: data["norm_stats"]["bridge_orig"]["action"].pop("mask"))
    assert load(folder).stats.mask.tolist() == [True] * 7


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("q01", None, "q01 must be a list of finite numbers"),
        ("q99", "wide", "q99 must be a list of finite numbers"),
        ("q99", [], "q99 must be a list of finite numbers"),
        ("q99", [0.1, float("nan"), 1, 1, 1, 1, 1], "q99 must be a list of finite numbers"),
        ("q99", [9.0] * 6, "7 q01, 6 q99"),
        ("q99", [9.0, -9.0, 9.0, 9.0, 9.0, 9.0, 9.0], "q99[1] is below q01"),
        ("mask", [True] * 6, "the mask [True, True"),
        ("mask", [1] * 7, "the mask [1, 1"),
        ("mask", True, "the mask True"),
        ("mask", [[], *[True] * 6], "the mask [[], True"),
    ],
)
def test_statistics_are_checked(folder: Path, field: str, value: object, message: str) -> None:
    edit_json(
        folder / "config.json",
        lambda data: data["norm_stats"]["bridge_orig"]["action"].update({field: value}),
    )
    refused(folder, "config.json: norm_stats.bridge_orig.action", message)


@pytest.mark.parametrize("entry", [{}, [], {"action": 3}])
def test_statistics_that_hold_no_actions_are_refused(folder: Path, entry: object) -> None:
    edit_json(folder / "config.json", lambda data: data.update(norm_stats={"a": entry}))
    refused(folder, "config.json: norm_stats.a.action.q01 must be a list of finite numbers")


def test_pixels_are_normalised_as_the_folder_says(folder: Path) -> None:
    assert load(folder).pixels.mean[:3] == (0.484375, 0.455078125, 0.40625)
    (folder / "preprocessor_config.json").unlink()
    assert load(folder).pixels == PixelNorm()
    np.testing.assert_allclose(PixelNorm().std[3:], 0.5)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("means", None, "means is None"),
        ("means", [[0.5, 0.5, 0.5]], "three numbers for either tower"),
        ("means", [[0.5, 0.5], [0.5, 0.5, 0.5]], "three numbers for either tower"),
        ("stds", [[0.5, 0.5, "x"], [0.5, 0.5, 0.5]], "stds[0] must be a list of finite numbers"),
        ("stds", [[0.5, 0.5, 0.0], [0.5, 0.5, 0.5]], "stds has 0.0"),
        ("image_resize_strategy", "letterbox", "image_resize_strategy is 'letterbox'"),
        ("interpolations", ["bicubic", "bilinear"], "interpolations is ['bicubic', 'bilinear']"),
    ],
)
def test_the_pixels_statistics_are_checked(folder: Path, field: str, value: object, message: str) -> None:
    edit_json(folder / "preprocessor_config.json", lambda data: data.update({field: value}))
    refused(folder, "preprocessor_config.json", message)
