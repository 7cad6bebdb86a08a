"""A model and a contract that do not fit are refused before anything moves."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from builders import make_checkpoint, make_config
from rclpy.parameter import Parameter
from smolvla_recording import make_smolvla_folder

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.request import Pace
from vla_accel_ros.engine.streaming.ports import Ports
from vla_accel_ros.engine.streaming.streaming import Streaming
from vla_accel_ros.models.calibration import Calibration, fingerprint, products
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.layers.few_bits import given
from vla_accel_ros.models.smolvla.policy import SmolVLAPolicy
from vla_accel_ros.nodes.inference.loading import Load
from vla_accel_ros.nodes.inference.setup import chosen
from vla_accel_ros.nodes.params.tables import NODES
from vla_accel_ros.types import Observation


def test_engine_is_warm_and_has_time_step_of_contract(tmp_path, contract):
    engine = Load(make_checkpoint(tmp_path), EngineConfig(steps=3), device="cpu").engine(contract)
    assert engine.config.step_dt_s == contract.chunk.step_dt_s and engine.config.steps == 3
    np.testing.assert_array_equal(engine.policy.delta_mask, contract.delta_mask)
    images = {camera.image: np.zeros((20, 30, 3), np.uint8) for camera in contract.cameras}
    observation = Observation(images, np.zeros(6, np.float32), "reach the red block", 1)
    with engine.observe(observation) as prefix:
        assert prefix.version == 2  # 0 was the warm-up, and 1 was timed
        assert engine.act(prefix).request_id == 2


def test_engine_is_warmed_up_with_answers_of_one_token(tmp_path, contract):
    engine = Load(make_checkpoint(tmp_path), EngineConfig(steps=2, answer_tokens=1), device="cpu").engine(
        contract
    )
    assert engine.config.answer_tokens == 1


def test_contract_is_refused_with_camera_unknown_to_model(tmp_path, contract):
    cameras = (contract.cameras[0], replace(contract.cameras[1], image="base_1_rgb"))
    with pytest.raises(
        ValueError, match=r"cameras\.wrist\.image: 'base_1_rgb'.*base_0_rgb, left_wrist_0_rgb"
    ):
        Load(make_checkpoint(tmp_path)).engine(replace(contract, cameras=cameras))


def test_contract_is_refused_with_other_number_of_joints(tmp_path, contract):
    with pytest.raises(ValueError, match=r"6 states.*5 of them"):
        Load(make_checkpoint(tmp_path)).engine(replace(contract, joints=contract.joints[:5]))


def test_embodiment_has_its_contract_on_shared_weights(tmp_path, contract):
    load = Load(make_checkpoint(tmp_path), EngineConfig(steps=3), device="cpu")
    policy = load.engine(contract).policy
    slow = replace(contract, chunk=replace(contract.chunk, step_dt_s=0.2))
    robot = load.embodiment(policy, slow)
    assert robot.policy.model is policy.model and robot.step_dt_s == 0.2
    np.testing.assert_array_equal(robot.policy.delta_mask, contract.delta_mask)
    with pytest.raises(ValueError, match=r"6 states.*5 of them"):
        load.embodiment(policy, replace(contract, joints=contract.joints[:5]))


def test_folder_without_model_is_refused(tmp_path, contract):
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "none"))):
        Load(tmp_path / "none").engine(contract)


def test_device_is_refused_when_missing(tmp_path, contract):
    with pytest.raises(ValueError, match="device is 'cuda:99'"):
        Load(make_checkpoint(tmp_path), device="cuda:99").engine(contract)


def test_slots_are_refused_when_none(tmp_path, contract):
    folder = make_checkpoint(tmp_path, make_config())
    with pytest.raises(ValueError, match="slots is 0"):
        Load(folder, EngineConfig(slots=0, answers=1)).engine(contract)


def test_lossy_precision_is_logged_and_takes_fast_stages(tmp_path, contract):
    folder, warnings = make_checkpoint(tmp_path), list[str]()
    load = Load(folder, EngineConfig(steps=2, fast=True, precision="int8"), device="cpu")
    load.engine(contract, warnings.append)
    assert "precision is int8" in warnings[-1]
    with pytest.raises(ValueError, match="precision is int8"):
        Load(folder, EngineConfig(fast=False, precision="int8"), device="cpu").engine(contract)
    assert Load(folder, EngineConfig(steps=2, precision="int8"), device="cpu").engine(contract).config.fast


def test_calibration_smooths_weights_while_loading_and_must_be_of_same_network(tmp_path, contract):
    folder, path = make_checkpoint(tmp_path, make_config("pi05")), tmp_path / "calibration.safetensors"
    model = load_policy(folder).model
    named = products(model)
    largest = {name: torch.linspace(0.1, 9.0, group[0].in_features) for name, group in named.items()}
    errors = dict.fromkeys(named, 0.0)
    calibration = Calibration(fingerprint(model), 1, largest, errors)
    calibration.write(path)
    config = EngineConfig(steps=2, precision="w8a8", keep_exact=False, calibration=str(path))
    warnings: list[str] = []
    engine = Load(folder, config, device="cpu").engine(contract, warnings.append)
    assert engine.policy.model.language_model.layers[0].mlp.down_proj.weight.is_meta
    assert given(engine.policy.model.language_model.layers[0])["down"].by is not None
    assert "smoothed as calibrated on 1 observations" in warnings[-1] and engine.runner.text is not None
    replace(calibration, model="of another").write(path)
    with pytest.raises(ValueError, match="to another network"):
        Load(folder, config, device="cpu").engine(contract)


def test_offload_takes_fast_stages_and_is_reported(tmp_path, contract):
    folder = make_checkpoint(tmp_path)
    engine = Load(folder, EngineConfig(steps=2, offload="vision"), device="cpu").engine(contract)
    assert engine.config.fast and engine.config.offload == "vision"
    assert "offload: the weights of 2 of 2 vision layers" in str(engine.runner.offload)
    with pytest.raises(ValueError, match="offload is vision"):
        Load(folder, EngineConfig(fast=False, offload="vision:0.5"), device="cpu").engine(contract)
    with pytest.raises(ValueError, match="offload is 'half'"):
        Load(folder, EngineConfig(offload="half"), device="cpu").engine(contract)


def test_fast_stages_are_made_for_cameras_of_contract_and_any_prompt(tmp_path, contract):
    stages, warnings, chunks = list[tuple](), list[str](), list[np.ndarray]()
    folder = make_checkpoint(tmp_path)
    for fast in (False, True):
        load = Load(folder, EngineConfig(steps=3, fast=fast), device="cpu")
        engine = load.engine(contract, warnings.append, preparing=lambda *stage: stages.append(stage))
        images = {camera.image: np.zeros((20, 30, 3), np.uint8) for camera in contract.cameras}
        observation = Observation(images, np.zeros(6, np.float32), "reach the red block", 1)
        with engine.observe(observation) as prefix:
            chunks.append(engine.act(prefix).actions)
    np.testing.assert_allclose(chunks[1], chunks[0], atol=1e-4)
    assert stages == [
        ("prefix of 2 images and 16 words", 0, 4),
        ("prefix of 2 images and 32 words", 1, 4),
        ("3 denoising steps of 1 chunks", 2, 4),
        ("3 denoising steps of 1 guided chunks", 3, 4),
    ]
    (warning,) = warnings
    assert "fast is true, but the model runs on cpu: captured stages need a GPU" in warning


@pytest.mark.parametrize("node", ["inference", "fleet_scheduler"])
def test_node_gives_config_options_that_are_set_and_no_others(node: str) -> None:
    overrides = {"model": "/m", "goal": "rate", "staggered": 0, "fast": "auto", "seed": 3}
    values = {**{parameter.name: parameter.default for parameter in NODES[node]}, **overrides}
    fake = SimpleNamespace(
        has_parameter=values.__contains__,
        get_parameter=lambda name: Parameter(name, value=values[name]),
        _parameter_overrides=overrides,
    )
    load = chosen(fake)  # type: ignore[arg-type]
    assert load.config.given == {"goal": "rate", "staggered": 0, "seed": 3}
    assert load.settings["slots"] == EngineConfig.slots


def test_node_without_model_is_refused_with_what_to_type() -> None:
    empty = SimpleNamespace(
        has_parameter=lambda name: False, get_parameter=lambda name: Parameter("", value="")
    )
    with pytest.raises(ValueError, match="-p model:=/path/to/checkpoint"):
        chosen(empty)  # type: ignore[arg-type]


def test_it_is_loaded_warmed_up_and_not_asked(tmp_path, contract):
    names = ("top", "wrist")
    cameras = tuple(replace(camera, image=name) for camera, name in zip(contract.cameras, names, strict=True))
    folder = make_smolvla_folder(tmp_path / "model")
    contract = replace(contract, cameras=cameras)
    with pytest.raises(ValueError, match=r"precision is int8.* smolvla"):
        Load(folder, EngineConfig(fast=True, precision="int8"), device="cpu").engine(contract)
    warned: list[str] = []
    prepared: list[tuple[str, int, int]] = []
    fast = Load(folder, EngineConfig(fast=True, steps=2), device="cpu")
    assert fast.engine(contract, warned.append, preparing=lambda *told: prepared.append(told)).config.fast
    assert "captured stages need a GPU" in warned[0]
    prefixes = [f"prefix of 2 images and {words} words" for words in (16, 32)]
    assert [name for name, _, _ in prepared] == [
        *prefixes, "2 denoising steps of 1 chunks", "2 denoising steps of 1 guided chunks"
    ]  # fmt: skip
    engine = Load(folder, EngineConfig(steps=2), device="cpu").engine(contract)
    assert isinstance(engine.policy, SmolVLAPolicy)
    with engine.runner.prefixes.newest() as prefix:
        assert prefix.instruction == "warm up"

    def nothing(*_):
        return None

    ports = Ports(nothing, nothing, nothing, nothing, nothing, nothing)
    stream = Streaming(engine, ports, Pace(10.0), Pace(10.0), Pace(10.0))
    assert [stats.name for stats in stream.stats()] == ["vision", "action"]
    with pytest.raises(ValueError, match=r"smolvla .*language head"):
        stream.ask("what is this")


@pytest.mark.parametrize("wrong", [{"dtype": "x"}, {"dtype": None}, {"device": 1}, {"torch_threads": "2"}])
def test_what_a_damaged_recording_says_to_load_is_refused_by_name(tmp_path, wrong):
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} is "):
        Load(tmp_path, **wrong)
