"""Data shards: episodes recorded in parallel from seeds, one file for each shard.

A shard is a .npz of flat arrays, with images at the policy's size from the policy's own resize. An existing
shard is never made again, so an interrupted run resumes. A shard depends on its seeds and, in rounds where
the policy drives, on an earlier round's policy, which is kept beside it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from training.demonstrations import Disturbed, Sample, draw_task, record_episode
from training.expert import Expert
from training.recipe import Recipe
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.flow.sampling import sample
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.models.processing.conventions import resize_with_pad
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import FAMILIES
from vla_accel_ros.tools.demo_policy.recipe import CAMERAS, DENOISE_STEPS
from vla_accel_ros.types import Observation

EPISODES_PER_SHARD = 50
FIRST_SEED = 1_000_000  # evaluation seeds are small numbers, so they never overlap

Prepare = Callable[[np.ndarray, int], np.ndarray]
"""uint8 [H, W, 3], size -> uint8 [size, size, 3]; found by its name, for other processes."""


@dataclass(frozen=True)
class ShardJob:
    """One shard to make. policy: folder of the driving policy, or None for the disturbed expert. prepare:
    the policy's preprocessing of a camera image to image_size."""

    path: Path
    seeds: tuple[int, ...]
    image_size: int
    delta_mask: tuple[bool, ...]
    policy: Path | None
    every: int
    families: tuple[str, ...] = FAMILIES
    prepare: Prepare = resize_with_pad


def round_folder(folder: Path, number: int) -> Path:
    """Return the folder of a round's shards."""
    return folder / "data" / f"round_{number}"


def submit(
    pool: Executor,
    folder: Path,
    recipe: Recipe,
    number: int,
    delta_mask: np.ndarray,
    image_size: int,
    families: tuple[str, ...] = FAMILIES,
    prepare: Prepare = resize_with_pad,
) -> list[Future[Path]]:
    """Start making the missing shards of a round."""
    target = round_folder(folder, number)
    target.mkdir(parents=True, exist_ok=True)
    driver = None
    if number >= recipe.expert_rounds:
        driver = target / "driver"
        if not driver.exists():
            shutil.copytree(folder / "policy", driver)
    count = recipe.expert_episodes if driver is None else recipe.dagger_episodes
    start = FIRST_SEED * (1 + number) + recipe.seed * 100_000
    jobs = [
        ShardJob(
            target / f"shard_{first:06d}.npz",
            tuple(range(start + first, start + min(first + EPISODES_PER_SHARD, count))),
            image_size,
            tuple(bool(delta) for delta in delta_mask),
            driver,
            recipe.expert_every if driver is None else recipe.dagger_every,
            families,
            prepare,
        )
        for first in range(0, count, EPISODES_PER_SHARD)
    ]
    return [pool.submit(make_shard, job) for job in jobs if not job.path.exists()]


def collect(pending: list[Future[Path]], label: str) -> None:
    """Wait for shards with a progress bar; raises the first failure."""
    for future in tqdm(
        as_completed(pending), total=len(pending), desc=label, mininterval=5, disable=not pending
    ):
        future.result()


def load(folder: Path, number: int) -> dict[str, np.ndarray]:
    """Return all samples of a round in order of seeds: the arrays of `samples.Arrays`."""
    paths = sorted(round_folder(folder, number).glob("shard_*.npz"))

    def read(path: Path) -> dict[str, np.ndarray]:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    with ThreadPoolExecutor(8) as readers:
        shards = list(readers.map(read, paths))
    return {name: np.concatenate([shard[name] for shard in shards]) for name in shards[0]}


_worker: tuple[SimRobot, Expert] | None = None


def make_shard(job: ShardJob) -> Path:
    """Record the episodes of a shard and write it atomically."""
    global _worker
    if _worker is None:
        robot = SimRobot()
        _worker = robot, Expert(robot)
    robot, expert = _worker
    policy = None if job.policy is None else load_policy(job.policy, delta_mask=np.array(job.delta_mask))
    recorded: list[Sample] = []
    for seed in job.seeds:
        task = draw_task(np.random.default_rng((seed, 0x7A5C)), job.families)
        behaviour = None if policy is None else PolicyDriver(policy, seed)
        recorded += record_episode(
            task, seed, behaviour, job.every, robot=robot, expert=expert, families=job.families
        )
    uv = np.stack([(s.target_uv, s.goal_uv) for s in recorded])
    partial = job.path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(
            file,
            front=np.stack([shrink(s.front, job) for s in recorded]),
            wrist=np.stack([shrink(s.wrist, job) for s in recorded]),
            state=np.stack([s.state for s in recorded]),
            chunk=np.stack([s.chunk for s in recorded]),
            instruction=np.array([s.instruction for s in recorded]),
            answer=np.array([s.answer for s in recorded]),
            uv=uv,
            uv_mask=((uv > 0) & (uv < 1)).all(-1),
        )
    partial.rename(job.path)
    return job.path


def shrink(image: np.ndarray, job: ShardJob) -> np.ndarray:
    """uint8 [H, W, 3] -> uint8 [3, size, size], by the policy's own preprocessing."""
    return np.ascontiguousarray(job.prepare(image, job.image_size).transpose(2, 0, 1))


class PolicyDriver:
    """Lets a policy drive an episode: a new chunk at a fixed period, in force a few frames after its image,
    as on the robot.

    The scene is still disturbed, and period and latency vary by episode, so that the data covers various
    timings.
    """

    def __init__(self, policy: AnyPolicy, seed: int) -> None:
        self.policy = policy
        self.rng = np.random.default_rng((seed, 0xD21E))
        self.period, self.latency = int(self.rng.integers(3, 9)), int(self.rng.integers(1, 5))
        self.disturbed = Disturbed(np.random.default_rng((seed, 0x5EED)))
        self.frame, self.start = 0, 0
        self.chunk: np.ndarray | None = None
        self.waiting: list[tuple[int, int, np.ndarray]] = []

    def __call__(self, robot: SimRobot, expert: Expert) -> np.ndarray:
        """Return the joint target [6] rad for the next 1/30 s."""
        self.disturbed.events(robot)
        if self.frame % self.period == 0:
            self.waiting.append((self.frame + self.latency, self.frame, self.infer(robot)))
        if self.waiting and self.waiting[0][0] <= self.frame:
            _, self.start, self.chunk = self.waiting.pop(0)
        age = self.frame - self.start
        self.frame += 1
        return robot.target if self.chunk is None else self.chunk[min(age, len(self.chunk) - 1)].astype(float)

    @torch.inference_mode()
    def infer(self, robot: SimRobot) -> np.ndarray:
        """Return a chunk, float32 [H, 6] absolute rad."""
        images = {name: robot.render(camera) for name, camera in CAMERAS.items()}
        inputs = self.policy.inputs(Observation(images, robot.state(), robot.task.instruction, 0))
        model = self.policy.model
        embeddings = torch.cat((model.encode(inputs.images).flatten(0, 1), model.embed_tokens(inputs.tokens)))
        _, kv = model.prefix(embeddings[None])
        noise = torch.from_numpy(
            self.rng.standard_normal((1, model.config.horizon, model.config.action_dim)).astype(np.float32)
        )

        def velocity(x: torch.Tensor, t: float) -> torch.Tensor:
            return model.velocity(x, torch.tensor([t]), None, kv)

        flow = sample(velocity, noise, DENOISE_STEPS)
        return self.policy.actions(flow.actions[0], robot.state())
