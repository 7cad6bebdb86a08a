"""A miniature of the small OpenVLA-OFT's training: what it computes is what the engine then does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from training import data, oft
from training.demonstrations import Sample, record_episode
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
from vla_accel_ros.models.openvla_oft.model import OpenVLAOFT
from vla_accel_ros.sim.tasks import tasks
from vla_accel_ros.tools.demo_policy.recipe import CAMERAS
from vla_accel_ros.types import Observation

pytestmark = pytest.mark.usefixtures("one_thread")
DELTA = np.array([True, True, True, True, True, False])
CPU = torch.device("cpu")
RECIPE = replace(oft.SECONDS, steps=12, learning_rate=2e-3)


@pytest.fixture(scope="module")
def recorded() -> list[Sample]:
    return [sample for seed, task in enumerate(tasks("reach")[:2]) for sample in record_episode(task, seed)]


@pytest.fixture(scope="module")
def arrays(recorded: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What training reads of one shard."""
    folder = tmp_path_factory.mktemp("run")
    job = data.ShardJob(
        data.round_folder(folder, 0) / "shard_0.npz",
        (3, 4),
        112,
        tuple(DELTA),
        None,
        14,
        ("reach",),
        oft.prepare,
    )  # fmt: skip
    job.path.parent.mkdir(parents=True)
    data.make_shard(job)
    return data.load(folder, 0)


def test_a_shard_has_only_the_families_asked_for(arrays: dict[str, np.ndarray]) -> None:
    assert {str(words).split()[0] for words in arrays["instruction"]} == {"reach"}


def test_a_few_steps_lower_the_loss_and_the_checkpoint_acts_as_it_was_trained(
    arrays: dict[str, np.ndarray], recorded: list[Sample], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    config = oft.policy_config(oft.write_words(tmp_path), len(DELTA))
    groups, bounds = oft.encoded(arrays, tmp_path, config, DELTA, CPU)
    model = OpenVLAOFT(config)
    oft.initialise(model)
    objective = oft.Objective(model)
    batch = {name: column[:4] for name, column in groups[0].items()}
    batch["images"] = batch["images"].float() / 127.5 - 1
    with torch.no_grad():
        before = objective(**batch)[1]
    oft.fit(objective, groups, RECIPE)
    with torch.no_grad():
        after = objective(**batch)[1]
    assert after["l1"] < 0.9 * before["l1"] and after["place"] < before["place"]

    oft.export(tmp_path, model, bounds, RECIPE)
    assert describe(tmp_path).missing == ()
    policy = load_policy(tmp_path, delta_mask=DELTA)
    sample = recorded[-1]
    images = {image: getattr(sample, camera) for image, camera in CAMERAS.items()}
    engine = Engine(policy)
    with engine.observe(Observation(images, sample.state, sample.instruction, 0)) as prefix:
        chunk = engine.act(prefix).actions
    pictures = np.stack([oft.prepare(image, 112).transpose(2, 0, 1) for image in images.values()])
    trained = oft.Objective(policy.model)
    with torch.no_grad():
        hidden, _ = trained.hidden(
            torch.from_numpy(pictures)[None] / 127.5 - 1,
            torch.tensor([policy.prompt(sample.instruction, sample.state)]),
            torch.from_numpy(bounds["proprio"].normalize(sample.state)).float()[None],
        )
        raw = trained.predicted(hidden)[0].numpy()
    moved = bounds["action"].unnormalize(raw) + np.where(DELTA, sample.state, 0.0)
    np.testing.assert_allclose(chunk, moved, atol=1e-4)
