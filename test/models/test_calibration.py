"""A calibration's file: what it says of which network, and which sentence refuses one that does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from builders import make_config, make_model, make_policy
from openvla_builders import make_openvla_folder
from safetensors.torch import load_file, save_file

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.calibration import (
    ERROR,
    FORMAT,
    Calibration,
    fingerprint,
    int8_weight,
    products,
    read,
)
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.layers.quantized import Quantized


def calibration(model: torch.nn.Module) -> Calibration:
    largest = {name: torch.rand(group[0].in_features) + 0.1 for name, group in products(model).items()}
    return Calibration(fingerprint(model), 12, largest, dict.fromkeys(largest, 0.01), 0.6, 0.02)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    model, path = make_model(make_config("pi05")), tmp_path / "calibration.safetensors"
    made = calibration(model)
    made.write(path)
    found = read(path, model)
    assert (found.observations, found.alpha, found.most_error) == (12, 0.6, 0.02)
    assert found.largest.keys() == made.largest.keys() == products(model).keys()
    assert all(torch.equal(found.largest[name], made.largest[name]) for name in made.largest)
    assert found.errors == pytest.approx(made.errors) and not found.exact()


def test_a_network_is_the_same_in_either_dtype_and_no_other_is(tmp_path: Path) -> None:
    model = make_model(make_config("pi05"))
    own = fingerprint(model)
    assert fingerprint(make_model(make_config("pi05")).set_precision(torch.bfloat16)) == own
    assert fingerprint(make_model(make_config("pi05"), seed=1)) != own
    assert fingerprint(make_model(make_config("pi0"))) != own
    openvla = load_policy(make_openvla_folder(tmp_path)).model
    assert {name.split(".")[0] for name in products(openvla)} == {"prefix"}


def test_products_are_every_linear_of_the_layers() -> None:
    model = make_model(make_config("pi0"))
    named = {id(linear) for group in products(model).values() for linear in group}
    layers = {
        id(m) for name, m in model.named_modules() if ".layers." in name and isinstance(m, torch.nn.Linear)
    }
    assert named == layers


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path: Path) -> None:
    policy = make_policy("pi05")
    path, model = tmp_path / "calibration.safetensors", policy.model

    def refused(why: str) -> None:
        with pytest.raises(ValueError, match=why) as caught:
            Engine(policy, fast=True, precision="w8a8", calibration=str(path))
        assert str(caught.value).endswith("make it with `vla calibrate`.")
        assert "\n" not in str(caught.value)

    refused("there is no calibration")
    calibration(make_model(make_config("pi05"), seed=7)).write(path)
    refused("belongs to another network than this checkpoint")
    made = calibration(model)
    made.write(path)
    whole = path.read_bytes()
    for size in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused("is damaged")
    said = {"format": FORMAT, "model": made.model, "observations": "1", "alpha": "0.5", "most_error": "0.1"}
    made.write(path)
    tensors = load_file(path)
    save_file(tensors, path, {**said, "format": "other"})
    refused("is not a calibration, its format is 'other'")
    save_file({name: value for name, value in tensors.items() if "expert.1.o" not in name}, path, said)
    refused("lacks expert.1.o")
    save_file({**tensors, "prefix.0.down.largest": torch.ones(3)}, path, said)
    refused(r"has \[3\] magnitudes for prefix.0.down, which needs 64")
    for number in (float("nan"), float("inf"), -1.0):
        broken = tensors["prefix.0.down.largest"].clone()
        broken[3] = number
        save_file({**tensors, "prefix.0.down.largest": broken}, path, said)
        refused("errors of prefix.0.down that are not finite numbers of 0 or more")
        save_file({**tensors, f"prefix.1.o{ERROR}": torch.tensor([number])}, path, said)
        refused("errors of prefix.1.o that are not finite numbers of 0 or more")
    for name, value in (("alpha", "x"), ("observations", "1.5"), ("most_error", "")):
        save_file(tensors, path, {**said, name: value})
        refused(f"says {name} '{value}'")


def test_weights_follow_the_file() -> None:
    model = make_model(make_config("pi05"))
    made, (linear,) = calibration(model), products(model)["expert.0.o"]
    small = int8_weight("expert.0.o", linear.weight, made)
    assert isinstance(small, Quantized) and small.by is not None
    assert (small.dequantized() - linear.weight).norm() < 0.02 * linear.weight.norm()
    lossy = Calibration(made.model, 1, made.largest, {**made.errors, "expert.0.o": 0.021}, 0.6, 0.02)
    assert int8_weight("expert.0.o", linear.weight, lossy) is linear.weight
    plain = int8_weight("expert.0.o", linear.weight, None)
    assert isinstance(plain, Quantized) and plain.by is None
