"""`vla calibrate`: what it sees of a network, from which observations, and that actions become more exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import make_checkpoint, make_config, make_observation, make_policy
from driven_bag import Drive, measured
from openvla_builders import make_openvla_folder, make_openvla_observation
from recorded_run import Run

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.calibration import Calibration, products, read
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.tools import cli
from vla_accel_ros.tools.bench.observations import recorded
from vla_accel_ros.tools.calibrate.dataset import is_dataset, of_dataset
from vla_accel_ros.tools.calibrate.seen import calibrate
from vla_accel_ros.tools.export.convert import export


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def _layers(stack: Any) -> list[Any]:
    return list(stack.layers)


@pytest.mark.parametrize("kind", ["pi0", "pi05", "openvla"])
def test_calibrate_largest_of_every_column_that_any_observation_brought(kind: str, tmp_path: Path) -> None:
    policy = load_policy(make_openvla_folder(tmp_path)) if kind == "openvla" else make_policy(kind)
    inputs: dict[str, list[torch.Tensor]] = {}
    make = make_openvla_observation if kind == "openvla" else make_observation
    observations = [make(seed) for seed in range(3)]
    hooks = [
        group[0].register_forward_pre_hook(
            lambda module, arguments, name=name: inputs.setdefault(name, []).append(
                arguments[0].flatten(0, -2).clone()
            )
        )
        for name, group in products(policy.model).items()
    ]
    calibration = calibrate(policy, observations)
    for hook in hooks:
        hook.remove()
    assert calibration.largest.keys() == inputs.keys() == products(policy.model).keys()
    for name, rows in inputs.items():
        assert torch.equal(calibration.largest[name], torch.cat(rows).abs().amax(0))
    assert calibration.observations == 3
    assert all(0 < error < 0.03 for error in calibration.errors.values()) and not calibration.exact()
    assert not any(group[0]._forward_pre_hooks for group in products(policy.model).values())


def test_calibrate_with_it_a_policy_with_outliers_acts_more_exactly(kind: str, tmp_path: Path) -> None:
    policy, path = make_policy(kind), tmp_path / "calibration.safetensors"
    for layer in _layers(policy.model.language_model) + _layers(policy.model.expert):
        layer.mlp.up_proj.weight.data[5] *= 100.0  # the same function, with one large column
        layer.mlp.down_proj.weight.data[:, 5] /= 100.0
    calibrate(policy, [make_observation(seed) for seed in range(4)]).write(path)
    chunks = []
    for precision, calibration in (("exact", ""), ("w8a8", ""), ("w8a8", str(path))):
        engine = Engine(policy, fast=True, precision=precision, calibration=calibration)
        actions = []
        for seed in (10, 11, 12):
            with engine.observe(make_observation(seed)) as prefix:
                actions.append(engine.act(prefix, noise=seed).actions)
        chunks.append(np.stack(actions))
    exact, plain, smoothed = chunks
    assert 0 < np.linalg.norm(smoothed - exact) < 0.7 * np.linalg.norm(plain - exact)


def test_calibrate_product_that_loses_more_than_is_wanted_stays_exact() -> None:
    policy = make_policy("pi05")
    errors = calibrate(policy, [make_observation(0)]).errors
    limit = float(np.median(list(errors.values())))
    calibration = calibrate(policy, [make_observation(0)], most_error=limit)
    assert calibration.exact() == [name for name, error in errors.items() if error > limit]
    assert 0 < len(calibration.exact()) < len(errors)


def test_calibrate_what_cannot_be_is_refused() -> None:
    policy = make_policy("pi05")
    with pytest.raises(ValueError, match="no observation"):
        calibrate(policy, [])
    for alpha, error in ((1.5, 0.1), (float("nan"), 0.1), (0.5, -1.0)):
        with pytest.raises(ValueError, match="alpha is"):
            calibrate(policy, [make_observation(0)], alpha, error)
    _layers(policy.model.expert)[1].mlp.up_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"expert\.0\.qkv "):
        calibrate(policy, [make_observation(0)])


def test_calibrate_on_a_bag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bag, model = Run(tmp_path).frames(4).tell().end(), tmp_path / "model"
    out = tmp_path / "made.safetensors"
    assert cli.main(["calibrate", str(model), str(bag), "--out", str(out), "--frames", "2"]) == 0
    output = capsys.readouterr().out
    assert "products on 2 observations" in output and "0 stay exact" in output
    assert read(out, load_policy(model).model).observations == 2


def test_calibrate_of_a_bag_of_several_robots_the_one_that_is_named_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = Run(tmp_path, apart="left").frames(2).tell()
    right = Run(tmp_path, beside=left, apart="right").frames(4).tell()
    bag, out = left.end(), tmp_path / "made.safetensors"
    command = ["calibrate", str(left.model), str(bag), "--out", str(out), "--frames", "4"]
    for options in ([], ["--namespace", "third"]):
        assert cli.main([*command, *options]) == 2
        assert "give --namespace with one of left, right" in capsys.readouterr().err
    assert cli.main([*command, "--namespace", "right"]) == 0
    assert "products on 4 observations" in capsys.readouterr().out
    observations, _, _ = recorded(bag, 9, "right")
    assert len(observations) == 4 and right.session.id != left.session.id


def test_calibrate_on_a_bag_of_a_robot_that_was_started_again(tmp_path: Path) -> None:
    run = Run(tmp_path).frames(2).tell()
    run.session = replace(run.session, id="started again")
    observations, _, _ = recorded(run.frames(3).tell().end(), 9)
    assert len(observations) == 5


def test_calibrate_on_a_dataset(tmp_path: Path) -> None:
    Drive(tmp_path / "bag", told=((0.0, "reach the red block"), (1.0, "reach the blue block")))
    export([tmp_path / "bag"], tmp_path / "dataset", split=True)
    root = tmp_path / "dataset"
    assert is_dataset(root) and not is_dataset(tmp_path / "bag")
    observations = of_dataset(root, 3, {"front": "base_0_rgb"})
    assert [observation.instruction for observation in observations] == [
        "reach the red block",
        *["reach the blue block"] * 2,
    ]
    for observation, seconds in zip(observations, (0.0, 1.0, 2.0), strict=True):
        assert set(observation.images) == {"base_0_rgb", "wrist"}
        assert (
            observation.images["wrist"].shape == (64, 96, 3) and observation.images["wrist"].dtype == np.uint8
        )
        np.testing.assert_allclose(observation.state, [measured(seconds, j) for j in range(6)], atol=1e-3)
    greys = [observation.images["wrist"].mean() for observation in observations]
    whole = of_dataset(root, 1000, {})
    assert len(whole) == 61 and [whole[index].images["wrist"].mean() for index in (0, 30, 60)] == greys
    assert len(set(greys)) == 3
    info = root / "meta" / "info.json"
    info.write_text(info.read_text().replace("v3.0", "v2.1"))
    with pytest.raises(ValueError, match=r"v2\.1.* v3\.0"):
        of_dataset(root, 3, {})


def test_calibrate_folder_that_is_neither_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_checkpoint(tmp_path / "model", make_config("pi05"), 0)
    out = tmp_path / "made.safetensors"
    assert cli.main(["calibrate", str(folder), str(tmp_path / "none"), "--out", str(out)]) == 2
    assert cli.main(["calibrate", str(folder), "--out", str(out), "--frames", "0"]) == 2
    assert "--frames is 0" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ("{", "info.json is not readable JSON"),
        ("[]", "info.json holds a list"),
        ('{"codebase_version": "v3.0"}', "it has no 'features'"),
        ('{"codebase_version": "v3.0", "features": []}', "no dataset of version v3.0"),
        ('{"codebase_version": "v3.0", "features": {"observation.state": {}}}', "it has no 'dtype'"),
    ],
)
def test_calibrate_dataset_that_lacks_something_is_refused(info: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "info.json").write_text(info)
    assert is_dataset(tmp_path)
    with pytest.raises(ValueError) as caught:
        of_dataset(tmp_path, 3, {})
    assert str(tmp_path) in str(caught.value) and said in str(caught.value)


def test_calibrate_file_that_cannot_be_written_after_all_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be written"):
        Calibration("", 0, {}).write(tmp_path)
