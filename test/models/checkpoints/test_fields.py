"""Every field that the public programs write is accepted; one that changes an action is refused by name.

test/data/public_fields.json has those of the public dataclasses, with their defaults: lerobot 0.3 to 0.6
(PI0Config, PI05Config, SmolVLAConfig and their base), OpenVLA's PrismaticConfig and its image processor, and
the config.json of openpi's conversion.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import make_checkpoint
from folders import edit_json, refused
from lerobot_builders import make_lerobot_config, make_lerobot_folder
from openvla_builders import make_openvla_folder
from smolvla_recording import make_smolvla_folder

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.openvla.policy import OpenVLAPolicy

FIELDS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "public_fields.json").read_text()
)
PI = FIELDS["lerobot"] | FIELDS["pi"]
READERS = ("pi0", "old pi0", "pi05", "smolvla", "openvla", "openpi")


def make_folder(reader: str, folder: Path) -> Path:
    """A folder whose config.json has every public field of its reader."""
    if reader == "openpi":
        make_checkpoint(folder)
        fields = FIELDS["openpi"]
    elif reader == "openvla":
        make_openvla_folder(folder)
        edit_json(folder / "preprocessor_config.json", lambda data: data.update(FIELDS["openvla pixels"]))
        fields = FIELDS["openvla"]
    elif reader == "smolvla":
        make_smolvla_folder(folder)
        fields = FIELDS["lerobot"] | FIELDS["smolvla"]
    else:
        kind = reader.removeprefix("old ")
        make_lerobot_folder(folder, make_lerobot_config(kind))
        fields = PI | FIELDS.get(reader, {})
    edit_json(folder / "config.json", lambda data: data.update(fields))
    return folder


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("sizes", ["ours", "inferred"])
def test_every_public_field_is_accepted_and_an_unknown_one_is_refused(
    tmp_path: Path, reader: str, sizes: str
) -> None:
    folder = make_folder(reader, tmp_path / "folder")
    if sizes == "ours":
        load_policy(folder)
    else:
        edit_json(folder / "config.json", lambda data: data.pop("vla_accel_ros"))
    edit_json(folder / "config.json", lambda data: data.update(center_crop_ratio=0.95))
    refused(folder, "config.json", "center_crop_ratio")


@pytest.mark.parametrize(
    ("reader", "field", "value"),
    [
        *((reader, "adapt_to_pi_aloha", True) for reader in ("pi0", "pi05", "smolvla")),
        *((reader, "use_delta_joint_actions_aloha", True) for reader in ("pi0", "pi05", "smolvla")),
        *((reader, "n_obs_steps", 2) for reader in ("pi0", "pi05", "smolvla")),
        *((reader, "use_peft", True) for reader in ("pi0", "pi05", "smolvla")),
        ("pi05", "use_proprioceptive_memory", True),
        ("old pi0", "resize_imgs_with_padding", [56, 56]),
        ("smolvla", "add_image_special_tokens", True),
        ("openvla", "quantization_config", {"load_in_4bit": True}),
        ("openvla", "text_config", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("openvla", "text_config", {"sliding_window": 128}),
    ],
)
def test_a_field_that_changes_actions_is_refused_by_name(
    tmp_path: Path, reader: str, field: str, value: Any
) -> None:
    folder = make_folder(reader, tmp_path / "folder")
    edit_json(folder / "config.json", lambda data: data.update({field: value}))
    refused(folder, "config.json", next(iter(value)) if field == "text_config" else field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tvf_crop_params", [{"output_size": [200, 200]}, {"output_size": [224, 224]}]),
        ("tvf_crop_params", [{"output_size": [224, 224]}]),
        ("tvf_resize_params", [{"interpolation": 2, "max_size": None, "size": [224, 224]}] * 2),
        ("tvf_resize_params", [{"interpolation": 3, "max_size": None, "size": 224}] * 2),
        ("tvf_do_letterbox", True),
        ("input_sizes", [3, 224, 224]),
        ("center_crop", True),
    ],
)
def test_an_openvla_that_crops_or_pads_its_images_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    folder = make_folder("openvla", tmp_path / "folder")
    edit_json(folder / "preprocessor_config.json", lambda data: data.update({field: value}))
    refused(folder, "preprocessor_config.json", field)


def test_the_pixels_that_openvlas_processor_wrote_out_are_the_ones_it_reads(tmp_path: Path) -> None:
    policy = load_policy(make_folder("openvla", tmp_path / "folder"))
    assert isinstance(policy, OpenVLAPolicy)
    assert policy.pixels.std[0] == 0.25


@pytest.mark.parametrize(
    ("step", "fields", "name"),
    [
        (
            "normalizer_processor",
            {"features": {"action": {"type": "ACTION", "shape": [6]}}},
            "observation.state",
        ),
        ("normalizer_processor", {"features": {"observation.state": {"type": "ENV"}}}, "observation.state"),
        ("normalizer_processor", {"clip": 5.0}, "clip"),
        ("tokenizer_processor", {"task_key": "subtask"}, "task_key"),
        ("tokenizer_processor", {"padding_side": "left"}, "padding_side"),
        ("tokenizer_processor", {"max_length": 31}, "max_length is 31"),
        ("device_processor", {"float_dtype": "bfloat16"}, "float_dtype"),
        ("rename_observations_processor", {"crop": [0, 0, 224, 224]}, "crop"),
        ("pi05_prepare_state_tokenizer_processor_step", {"bins": 512}, "bins"),
    ],
)
def test_a_field_of_a_processor_step_that_changes_actions_is_refused(
    tmp_path: Path, step: str, fields: dict[str, Any], name: str
) -> None:
    folder = make_lerobot_folder(tmp_path / "folder", relative=False)

    def change(data: dict[str, Any]) -> None:
        config = {"registry_name": step, "config": {}}
        steps = [entry for entry in data["steps"] if entry["registry_name"] == step]
        if not steps:
            data["steps"].append(config)
            steps = [config]
        steps[0]["config"].update(fields)

    edit_json(folder / "policy_preprocessor.json", change)
    refused(folder, "policy_preprocessor.json", name)


@pytest.mark.parametrize("file", ["policy_preprocessor.json", "policy_postprocessor.json"])
def test_an_unknown_field_of_a_processors_file_is_refused(tmp_path: Path, file: str) -> None:
    folder = make_lerobot_folder(tmp_path / "folder")
    edit_json(folder / file, lambda data: data.update(clip_actions=True))
    refused(folder, file, "clip_actions")
    edit_json(folder / file, lambda data: data.pop("clip_actions"))
    edit_json(folder / file, lambda data: data["steps"][0].update(when="training"))
    refused(folder, file, "when")


def test_processors_of_another_kind_of_policy_are_refused(tmp_path: Path, kind: str) -> None:
    folder = make_lerobot_folder(tmp_path / kind, make_lerobot_config(kind))
    other = make_lerobot_folder(tmp_path / "other", make_lerobot_config("pi05" if kind == "pi0" else "pi0"))
    text = json.loads((other / "policy_preprocessor.json").read_text())
    (folder / "policy_preprocessor.json").write_text(json.dumps(text))
    refused(folder, "policy_preprocessor.json", "pi0_new_line" if kind == "pi0" else "pi05_prepare_state")


@pytest.mark.parametrize(
    "part",
    [
        "action_head.safetensors",
        "proprio_projector--latest_checkpoint.pt",
        "noisy_action_projector--50000_checkpoint.pt",
        "vision_backbone--150000_checkpoint.pt",
        "lora_adapter/adapter_config.json",
    ],
)
def test_an_openvla_with_the_parts_of_an_oft_is_refused_naming_the_part(tmp_path: Path, part: str) -> None:
    folder = make_openvla_folder(tmp_path / "openvla")
    (folder / part).parent.mkdir(exist_ok=True)
    (folder / part).write_text("{}")
    refused(folder, part.partition("/")[0], "OpenVLA-OFT")


def test_an_openvla_oft_without_its_parts_is_told_by_its_code(tmp_path: Path) -> None:
    """The signatures of modeling_prismatic.py in openvla-oft and in openvla; its loader copies the file."""
    folder = make_openvla_folder(tmp_path / "folder")
    code = folder / "modeling_prismatic.py"
    code.write_text("    def predict_action(self, input_ids=None, unnorm_key=None, **kwargs):\n")
    load_policy(folder)
    code.write_text("    def predict_action(self, input_ids=None, proprio=None, proprio_projector=None):\n")
    refused(folder, code.name, "OpenVLA-OFT")
