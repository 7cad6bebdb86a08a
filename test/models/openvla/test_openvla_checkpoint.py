"""An OpenVLA folder is loaded whole or refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from folders import edit_json, edit_weights, refused
from openvla_builders import make_norm_stats, make_openvla, make_openvla_folder, make_published_config
from safetensors.torch import save_file
from torch import Tensor

from vla_accel_ros.models.checkpoints import streaming
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
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


def test_bfloat16_is_every_parameters_dtype(folder: Path) -> None:
    edit_weights(folder / "model.safetensors", lambda tensors: tensors.update({NORM: tensors[NORM].half()}))
    model = load_policy(folder, dtype=torch.bfloat16).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in load_policy(folder).model.parameters()} == {torch.float32}


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


def test_an_index_is_checked(sharded: Path) -> None:
    for content, part in (("{}", "field weight_map"), ("[]", "holds a list"), ("{", "not readable JSON")):
        (sharded / INDEX).write_text(content)
        refused(sharded, INDEX, part)


def test_a_shard_that_the_index_names_must_be_there(sharded: Path) -> None:
    file = shard(sharded, 1)
    file.unlink()
    refused(sharded, INDEX, file.name)


def test_config_json_is_checked(folder: Path) -> None:
    edit_json(folder / "config.json", lambda data: data["vla_accel_ros"].pop("bins"))
    refused(folder, "config.json, field vla_accel_ros: ", "missing ['bins']")
    (folder / "config.json").write_text(json.dumps(make_published_config()))
    refused(folder, "config.json: a tower of width 24 does not tell the number of heads")
    edit_json(folder / "config.json", lambda data: data.update(arch_specifier="linear"))
    refused(folder, "config.json: arch_specifier is 'linear'; only 'no-align+fused-gelu-mlp' is known.")
    (folder / "config.json").unlink()
    refused(folder, "config.json: a tower of width 24 does not tell the number of heads")


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
        ("q99", [9.0] * 6, "7 q01 but 6 q99"),
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


def test_progress_is_told_to_the_end(sharded: Path) -> None:
    told: list[tuple[int, int]] = []
    load_policy(sharded, progress=lambda done, total: told.append((done, total)))
    parameters = list(make_openvla().parameters())
    total = sum(parameter.nbytes for parameter in parameters)
    assert len(told) == len(parameters)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (total, total)
    assert {total_ for _, total_ in told} == {total}
