"""SmolVLA's stages against what lerobot computed with the same weights, and against its plain functions."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from builders import make_observation
from closeness import assert_near
from seated import Seated
from smolvla_recording import CASES, SPEC, Case
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.denoise.captured_seats import CapturedSeats
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.flow.committed import Committed
from vla_accel_ros.models.flow.rtc import Guidance, Inpainting
from vla_accel_ros.models.flow.sampling import Velocity, sample
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.smolvla.policy import SmolVLAPolicy
from vla_accel_ros.types import Observation

STEPS = SPEC["num_steps"]
SLOTS = 3
FRAMES = (("top", "wrist"), 5), (("top",), 31), (("wrist",), 17)
"""Cameras, and letters of the instruction: in three buckets of prompts."""


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def policy(request: pytest.FixtureRequest, folder: Path) -> SmolVLAPolicy:
    policy = load_policy(folder, request.param, torch.float32)
    assert isinstance(policy, SmolVLAPolicy)
    return policy


class Staged:
    """Stages of the recorded model over a pool full of other numbers."""

    def __init__(self, policy: SmolVLAPolicy, groups: int = 1) -> None:
        config = policy.config
        self.policy, self.device = policy, policy.device
        self.pool = KVPool(config.prefix, SLOTS, config.max_tokens, policy.device, policy.kv_dtype)
        for part in (self.pool.k, self.pool.v):
            part.fill_(7.0)
        self.stages = Stages(policy.model, self.pool, "lerobot", rule=policy.pixel_rule, groups=groups)

    def observe(self, observations: list[Observation], slots: list[int]) -> list[int]:
        states: list[Tensor] = []

        def words() -> list[Tensor]:
            states.extend(self.policy.normalized_state(one.state) for one in observations)
            return [torch.tensor(self.policy.host_words(one)) for one in observations]

        images = [self.policy.host_images(one) for one in observations]
        return self.stages.observe(images, words, slots, states=states)

    def plain(self, observation: Observation) -> KV:
        embeddings = self.policy.embed(self.policy.inputs(observation))
        with torch.inference_mode():
            return self.policy.model.prefix(embeddings)[1]

    def field(self, kv: KV) -> Velocity:
        model = self.policy.model
        return lambda x, t: model.velocity(x, torch.full((1,), t, device=x.device), None, kv)

    def noise(self, seed: int) -> Tensor:
        shape = 1, self.policy.config.horizon, self.policy.config.action_dim
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(self.device)


@pytest.fixture(scope="module")
def staged(policy: SmolVLAPolicy) -> Staged:
    return Staged(policy)


def frame(number: int) -> Observation:
    cameras, letters = FRAMES[number]
    return make_observation(number, cameras, "x" * letters, size=(48, 64))


@pytest.mark.parametrize("index", CASES)
def test_what_lerobot_computed(staged: Staged, index: int) -> None:
    case = Case(index, str(staged.device))
    (length,) = staged.observe([case.observation], [1])
    kv = staged.pool.view(1, length)
    assert_near(kv.k[:, 0].transpose(1, 2), case["prefix_k"])
    assert_near(kv.v[:, 0].transpose(1, 2), case["prefix_v"])
    flow = staged.stages.act(case["noise"][None], None, [1], [length], STEPS)
    assert_near(flow.actions[0], case["actions_normalized"])
    rtc = SPEC["rtc"]
    guidance = Guidance(
        case["rtc_prev"], rtc["delay"], rtc["execution"], rtc["schedule"], "identity", rtc["max_weight"]
    )
    guide = Inpainting.of(guidance, *case["noise"].shape)
    guided = staged.stages.act(case["noise"][None], None, [1], [length], STEPS, [guide])
    noise = case["noise"][None]
    expected = sample(
        guidance.guide(staged.field(staged.plain(case.observation)), noise), noise, STEPS, "lerobot"
    )
    assert_near(guided.actions, expected.actions)


def test_several_frames_in_one_forward(staged: Staged) -> None:
    """Of different lengths: nothing of one is in another."""
    frames = [make_observation(number, ("top",), "x" * letters) for number, letters in enumerate((3, 9, 12))]
    for slot, (length, one) in enumerate(zip(staged.observe(frames, [0, 1, 2]), frames, strict=True)):
        expected = staged.plain(one)
        for ours, theirs in zip(staged.pool.view(slot, length), expected, strict=True):
            assert_near(ours, theirs)
        start = staged.noise(slot)
        made = staged.stages.act(start, None, [slot], [length], 4)
        assert_near(made.actions, sample(staged.field(expected), start, 4, "lerobot").actions)


@pytest.mark.parametrize("wide", [False, True], ids=["few rows", "many rows"])
def test_free_guided_and_committed_chunks_in_seats_and_together(staged: Staged, wide: bool) -> None:
    """Each on its own frame, with another number of images and of words."""
    frames = [frame(number) for number in range(SLOTS)]
    lengths = [staged.observe([one], [slot])[0] for slot, one in enumerate(frames)]
    target = staged.noise(9)[0]
    given = None, Guidance(target[:6], 1, 4, jacobian="identity", max_weight=2.0), Committed(target[:3])
    guides = [None if one is None else Inpainting.of(one, *target.shape) for one in given]
    expected = []
    for slot, one in enumerate(given):
        kv, start = staged.plain(frames[slot]), staged.noise(slot)
        field = staged.field(kv)
        if isinstance(one, Committed):
            velocity = partial(staged.policy.model.velocity, state=None, kv=kv)
            start, field = one.begin(start), one.hold(velocity)
        elif one is not None:
            field = one.guide(field, start)
        expected.append(sample(field, start, 4, "lerobot").actions)
    noise = torch.cat([staged.noise(slot) for slot in range(SLOTS)])
    flow = staged.stages.act(noise, None, [0, 1, 2], lengths, 4, guides)
    assert_near(flow.actions, torch.cat(expected))
    batch = Seated(CapturedSeats(staged.stages, SLOTS, 4, wide))
    for slot, guide in enumerate(guides):
        batch.begin(slot, noise[slot : slot + 1], None, staged.pool.span(slot, 0, lengths[slot]), guide)
        batch.step()
    batch.run()
    for slot in range(SLOTS):
        assert_near(batch.flows[slot].actions, expected[slot])


def test_a_frame_in_groups_of_layers_is_the_whole_one(policy: SmolVLAPolicy) -> None:
    staged, one = Staged(policy, groups=3), frame(1)
    (length,) = staged.observe([one], [0])
    groups = staged.stages.groups
    assert groups is not None
    images, words = policy.host_images(one), torch.tensor(policy.host_words(one))
    progress = groups.begin(images, lambda: words, 1, states=[policy.normalized_state(one.state)])
    while progress.groups:
        groups.advance(progress)
    assert progress.length == length
    start = staged.noise(0)
    whole, grouped = (staged.stages.act(start, None, [slot], [length], 2).actions for slot in (0, 1))
    assert torch.equal(whole, grouped)
    for ours, theirs in zip(staged.pool.view(1, length), staged.pool.view(0, length), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.gpu
def test_bfloat16_is_as_near_to_the_recording_as_the_plain_functions(folder: Path) -> None:
    policy = load_policy(folder, "cuda", torch.bfloat16)
    assert isinstance(policy, SmolVLAPolicy)
    staged = Staged(policy)
    for index in CASES:
        case = Case(index, "cuda")
        (length,) = staged.observe([case.observation], [1])
        noise, made = case["noise"][None], []
        for _ in range(2):
            made.append(staged.stages.act(noise, None, [1], [length], STEPS).actions[0])
        assert torch.equal(*made), "a replay has the same bits"
        plain = sample(staged.field(staged.plain(case.observation)), noise, STEPS, "lerobot").actions[0]
        ours, theirs = ((x - case["actions_normalized"]).norm() for x in (made[0], plain))
        assert ours < 1.5 * theirs + 1e-3
