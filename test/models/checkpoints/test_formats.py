"""Which folder is what is told by its content; what is no checkpoint, or a dangerous one, is refused."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_checkpoint, make_config
from folders import refused
from lerobot_builders import make_lerobot_folder
from openvla_builders import make_openvla_folder
from safetensors.torch import load_file, save_file
from smolvla_recording import make_smolvla_folder

from vla_accel_ros.models.checkpoints.checkpoint import describe, find_format, formats, load_policy
from vla_accel_ros.models.checkpoints.formats import Contents

MAKERS = {
    "openpi": lambda folder: make_checkpoint(folder, make_config("pi0")),
    "lerobot": lambda folder: make_lerobot_folder(folder),
    "OpenVLA": lambda folder: make_openvla_folder(folder, shards=2),
    "SmolVLA": lambda folder: make_smolvla_folder(folder),
}


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str, int]]:
        return os.mkdir, (str(self.mark), 0o700)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("called", ["pi0_openvla_smolvla", "x"])
def test_a_folder_is_told_by_its_content(name: str, called: str, tmp_path: Path) -> None:
    folder = MAKERS[name](tmp_path / called)
    contents = Contents.of(folder)
    assert [known.name for known in formats() if known.holds(contents)][:1] == [name]
    assert describe(folder).missing == ()
    assert load_policy(folder).config == describe(folder).config


@pytest.mark.parametrize("name", ["lerobot", "OpenVLA", "SmolVLA"])
def test_without_its_config_the_names_of_its_tensors_tell(name: str, tmp_path: Path) -> None:
    folder = MAKERS[name](tmp_path / "folder")
    (folder / "config.json").unlink()
    assert find_format(Contents.of(folder)).name == name
    refused(folder, "config.json")


def test_what_nobody_knows_is_said_as_it_is(tmp_path: Path) -> None:
    refused(tmp_path / "none", "none is not a folder")
    refused(tmp_path, "is no checkpoint that is known here (config.json says nothing, files [], tensors [])")
    (tmp_path / "config.json").write_text(json.dumps({"type": "act", "model_type": "bert"}))
    save_file({"encoder.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    refused(
        tmp_path, "{'type': 'act', 'model_type': 'bert'}", "['encoder.weight']", "give the folder of a pi0"
    )
    file = make_checkpoint(tmp_path / "pi") / "model.safetensors"
    refused(file, "model.safetensors is not a folder; give the checkpoint's folder")


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "model.ckpt", "weights.pkl"])
def test_pickles_are_named_and_never_opened(name: str, file: str, tmp_path: Path) -> None:
    folder = MAKERS[name](tmp_path / "folder")
    for weights in folder.glob("model*"):
        weights.unlink()
    mark = tmp_path / "mark"
    (folder / file).write_bytes(pickle.dumps(Trap(mark)))
    refused(folder, file, "pickled files are never opened")
    (folder / "config.json").unlink()
    refused(folder, file, "never opened")
    (folder / "model.safetensors").write_bytes(pickle.dumps(Trap(mark)))
    refused(folder, "model.safetensors is not a readable safetensors file")
    assert not mark.exists()


@pytest.mark.parametrize("name", MAKERS)
def test_code_in_a_folder_is_not_run_and_nothing_in_it_is_changed(name: str, tmp_path: Path) -> None:
    folder = MAKERS[name](tmp_path / "folder")
    mark = tmp_path / "mark"
    for file in ("modeling_prismatic.py", "__init__.py", "configuration.py", "processing.py"):
        (folder / file).write_text(f"import os; os.mkdir({str(mark)!r})")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    load_policy(folder)
    describe(folder)
    assert not mark.exists()
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", MAKERS)
def test_weights_that_are_no_floating_point_are_named(name: str, tmp_path: Path) -> None:
    folder = MAKERS[name](tmp_path / "folder")
    file = sorted(folder.glob("model*.safetensors"))[0]
    tensors = load_file(file)
    odd = next(key for key, tensor in sorted(tensors.items()) if tensor.ndim == 2 and "unused" not in key)
    tensors[odd] = tensors[odd].to(torch.int8)
    save_file(tensors, file)
    refused(folder, f"not floating point ['{odd} I8']")


@pytest.mark.parametrize("name", MAKERS)
def test_a_weight_that_is_no_number_is_named(name: str, tmp_path: Path) -> None:
    folder = MAKERS[name](tmp_path / "folder")
    wanted = next(
        key for key, _ in load_policy(folder).model.named_parameters() if key.endswith("norm.weight")
    )
    for file in folder.glob("model*.safetensors"):
        tensors = load_file(file)
        for key in tensors:
            if key.removeprefix("model.") == wanted or key == wanted:
                tensors[key][0] = float("nan")
                save_file(tensors, file)
    refused(folder, f"not every number is finite in ['{wanted}']")


@pytest.mark.parametrize("name", MAKERS)
def test_a_truncated_file_is_named(name: str, tmp_path: Path) -> None:
    folder = MAKERS[name](tmp_path / "folder")
    file = sorted(folder.glob("model*.safetensors"))[0]
    os.truncate(file, file.stat().st_size - 1)
    refused(folder, file.name, "is not a readable safetensors file", "copy it again")


def test_links_must_stay_in_the_folder(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "policy")
    weights = folder / "model.safetensors"
    elsewhere = tmp_path / "elsewhere.safetensors"
    weights.rename(elsewhere)
    weights.symlink_to(elsewhere)
    refused(folder, "model.safetensors is a link to", "outside of its folder; copy the file itself")
    weights.unlink()
    weights.symlink_to(folder / "kept.safetensors")
    elsewhere.rename(folder / "kept.safetensors")
    load_policy(folder)
    (tmp_path / "tokens.json").write_text("{}")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to(tmp_path / "tokens.json")
    refused(folder, "tokenizer.json is a link to")
    (folder / "config.json").rename(tmp_path / "config.json")
    (folder / "config.json").symlink_to(tmp_path / "config.json")
    refused(folder, "config.json is a link to")


def test_a_snapshot_of_the_hubs_cache_is_links_to_its_blobs(tmp_path: Path) -> None:
    """models--x/snapshots/<revision>/file -> ../../blobs/<hash>"""
    made = make_openvla_folder(tmp_path / "made", shards=2)
    cache = tmp_path / "models--x"
    snapshot = cache / "snapshots" / "abc"
    (cache / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(made.iterdir())):
        file.rename(cache / "blobs" / str(number))
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / str(number))
    assert load_policy(snapshot).joints == 7
    shard = next(snapshot.glob("*.safetensors"))
    target = (tmp_path / "outside").resolve()
    shard.resolve().rename(target)
    shard.unlink()
    shard.symlink_to(target)
    refused(snapshot, "is a link to", "outside of its folder")


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/etc/passwd", "sub/x.safetensors", "x.bin", 3, None, ""]
)
def test_an_index_names_files_beside_it(shard: object, tmp_path: Path) -> None:
    folder = make_openvla_folder(tmp_path, shards=2)
    file = folder / "model.safetensors.index.json"
    data = json.loads(file.read_text())
    first = sorted(data["weight_map"])[0]
    data["weight_map"][first] = shard
    file.write_text(json.dumps(data))
    refused(folder, f"weight_map.{first}", "it must name a .safetensors beside it")


@pytest.mark.parametrize("weights", ["of their own", "of the base model"])
@pytest.mark.parametrize("name", MAKERS)
def test_adapters_are_refused_also_beside_the_weights_of_their_base_model(
    name: str, weights: str, tmp_path: Path
) -> None:
    """peft writes them without weights; with the base model's, a folder would be loaded as that."""
    folder = MAKERS[name](tmp_path / "model")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    adapters = {"base_model.model.q_proj.lora_A.weight": torch.ones(2, 4)}
    save_file(adapters, folder / "adapter_model.safetensors")
    if name in ("lerobot", "SmolVLA"):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "use_peft": True}))
    if weights == "of their own":
        for file in folder.glob("model*.safetensors*"):
            file.unlink()
    refused(folder, "has LoRA adapters (adapter_config.json), which are not applied here; merge them into")
    (folder / "config.json").unlink()
    for file in folder.glob("model*.safetensors*"):
        file.unlink()
    refused(folder, "has LoRA adapters (adapter_config.json)")


@pytest.mark.parametrize("before", ["", "base_model.model."])
@pytest.mark.parametrize("name", MAKERS)
def test_adapters_among_the_weights_are_refused_in_one_sentence(
    name: str, before: str, tmp_path: Path
) -> None:
    folder = MAKERS[name](tmp_path / "model")
    for file in folder.glob("model*.safetensors"):
        tensors, unmerged = load_file(file), dict[str, torch.Tensor]()
        for weight, tensor in tensors.items():
            module, projects, _ = weight.partition(".weight") if "q_proj." in weight else (weight, "", "")
            unmerged[f"{before}{module}{'.base_layer.weight' if projects else ''}"] = tensor
            if projects:
                unmerged[f"{before}{module}.lora_A.default.weight"] = tensor[:2].clone()
        save_file(unmerged, file)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = folder.glob("model*.safetensors")
        index.write_text(
            json.dumps({"weight_map": {w: file.name for file in shards for w in load_file(file)}})
        )
    with pytest.raises(ValueError, match=r"has LoRA adapters \(\S*lora_A\.default\.weight\)") as caught:
        load_policy(folder)
    assert len(str(caught.value)) < 500
