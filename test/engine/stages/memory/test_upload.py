"""Camera pixels into captured stages: each family's own pixels, and never of a frame that was overwritten."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders import CAMERAS, make_config, make_model, make_observation, make_policy
from eight_stages import make_eight
from openvla_builders import CAMERA, make_openvla_folder, make_openvla_observation
from smolvla_recording import make_smolvla_folder

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import Prefix
from vla_accel_ros.engine.runner.frames import EncodeOnly
from vla_accel_ros.engine.stages.memory.host_memory import Registration
from vla_accel_ros.engine.stages.memory.upload import ImageUpload
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.kernels.reference import image
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.processing.conventions import LEROBOT, OPENPI, Conventions, padded
from vla_accel_ros.models.processing.resize import resize_bilinear
from vla_accel_ros.types import Observation, Torn

CPU = torch.device("cpu")
EXACT_OPENPI = replace(OPENPI, resize=partial(padded, resize=resize_bilinear))
"""openpi's as Pillow computes it, on a CPU too, where the plain policy takes torch's within a level."""

LARGE, TALL = (60, 90), (95, 31)


def mixed(seed: int, sizes: tuple[tuple[int, int], ...] = (LARGE, TALL)) -> Observation:
    """Cameras of different sizes."""
    rng = np.random.default_rng(seed)
    images = {
        name: rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        for name, size in zip(CAMERAS, sizes, strict=False)
    }
    return replace(make_observation(seed), images=images)


def chunks(engine: Engine, observations: list[Observation]) -> list[np.ndarray]:
    made = []
    for observation in observations:
        with engine.observe(observation) as prefix:
            made.append(engine.act(prefix).actions)
    return made


@pytest.mark.parametrize("conventions", [EXACT_OPENPI, LEROBOT], ids=lambda which: which.name)
def test_chunks_of_large_frames_are_those_of_the_plain_engine(kind: str, conventions: Conventions) -> None:
    """Whatever the cameras' sizes, while they change, and with a camera that is missing."""
    policy = dataclasses.replace(make_policy(kind), conventions=conventions)
    observations = [mixed(0), mixed(1), mixed(2, (TALL, LARGE)), mixed(3, (LARGE,)), make_observation(4)]
    plain, fast = (chunks(Engine(policy, fast=fast), observations) for fast in (False, True))
    for one, other in zip(plain, fast, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-4)


def turned(observation: Observation, turns: int, copied: bool) -> Observation:
    """With its first picture cropped and turned, in place or as a copy."""
    name, picture = next(iter(observation.images.items()))
    seen = np.rot90(picture[3:-4, 5:-5], turns)
    own = {name: np.ascontiguousarray(seen) if copied else seen}
    return replace(observation, images={**observation.images, **own})


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "captured"])
@pytest.mark.parametrize("kind", ["pi0", "openvla", "smolvla"])
def test_pictures_that_are_cropped_and_turned_in_place_give_the_chunks_of_their_copies(
    kind: str, fast: bool, tmp_path: Path
) -> None:
    """Also while they change from frame to frame."""
    if kind == "pi0":
        policy: Any = make_policy(kind)
        seen = [mixed(seed) for seed in range(3)]
    elif kind == "openvla":
        policy = load_policy(make_openvla_folder(tmp_path, seed=3))
        seen = [make_openvla_observation(seed, size=(48, 64)) for seed in range(3)]
    else:
        policy = load_policy(make_smolvla_folder(tmp_path / "model"))
        names = policy.config.image_names
        seen = [make_observation(seed, names, size=(40, 50)) for seed in range(3)]
    turns = [2, 1, 3]
    placed, copied = (
        chunks(
            Engine(policy, fast=fast), [turned(one, k, copied) for one, k in zip(seen, turns, strict=True)]
        )
        for copied in (False, True)
    )
    for one, other in zip(placed, copied, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(placed[0], chunks(Engine(policy, fast=fast), seen)[0])


def test_openvlas_frames_are_encoded_to_the_bit(tmp_path: Path) -> None:
    policy: Any = load_policy(make_openvla_folder(tmp_path, seed=3))
    plain, fast = Engine(policy), Engine(policy, fast=True)
    for seed, size in enumerate(((48, 64), (48, 64), (200, 31), (28, 28))):
        observation = make_openvla_observation(seed, size=size)
        expected = policy.embed(policy.inputs(observation))[0]
        with fast.observe(observation) as prefix, plain.observe(observation) as other:
            assert (prefix.n_tokens, prefix.n_images) == (other.n_tokens, other.n_images)
            assert torch.equal(embeddings(fast, prefix), expected)
            np.testing.assert_array_equal(fast.act(prefix).actions, plain.act(other).actions)


def embeddings(engine: Engine, prefix: Prefix) -> torch.Tensor:
    """Of a frame that was only encoded, [T, W]."""
    assert isinstance(engine.runner.prefill, EncodeOnly)
    return engine.runner.prefill.embeddings(prefix.slot, prefix.n_tokens)[0]


def overwritten(observation: Observation) -> Observation:
    """One whose cameras come round at the last moment: when whole is asked, the pixels are others."""

    def intact() -> bool:
        for picture in observation.images.values():
            picture[:] = 0
        return False

    return replace(observation, intact=intact)


@pytest.mark.parametrize("family", ["pi05", "openvla", "without kernels"])
def test_of_a_torn_frame_nothing_comes_and_the_next_is_as_ever(family: str, tmp_path: Path) -> None:
    if family == "openvla":
        policy: Any = load_policy(make_openvla_folder(tmp_path, seed=3))
        first, torn, last = (make_openvla_observation(seed) for seed in range(3))
    else:
        policy = make_policy(family) if family == "pi05" else make_eight()
        first, torn, last = (mixed(seed) for seed in range(3))
    engine, other = Engine(policy, fast=True), Engine(policy, fast=True)
    with engine.observe(first) as prefix:
        with pytest.raises(Torn, match="overwritten"):
            engine.observe(overwritten(torn))
        newest = engine.runner.prefixes.newest()
        assert newest is not None
        with newest:
            assert newest.version == prefix.version
        engine.act(prefix)
    free = engine.runner.pool.free
    (ours,) = chunks(engine, [last])
    assert engine.runner.pool.free == free
    with other.observe(last) as prefix:
        noise = None if family == "openvla" else 1  # the second request's
        np.testing.assert_array_equal(ours, other.act(prefix, noise=noise).actions)


def test_frames_may_be_overwritten_once_they_were_taken() -> None:
    upload, frame = (
        ImageUpload(OPENPI.pixels, 14, 1, CPU),
        make_observation(size=(20, 30)).images[CAMERAS[0]],
    )
    asked, before = [], torch.from_numpy(frame.copy())

    def taken() -> None:
        frame[:] = 0
        asked.append(True)

    upload.take([frame], taken)
    assert asked == [True]
    assert torch.equal(upload.views.now[0].pixels, before)


def test_a_buffer_serves_every_frame_of_a_size_and_any_strides() -> None:
    upload = ImageUpload(OPENPI.pixels, 14, 2, CPU)
    frames = list(mixed(0).images.values())
    upload.take(frames)
    where, table = [view.pixels.data_ptr() for view in upload.views.now], upload.views.table.clone()
    flipped = [frame[::-1, :, ::-1] for frame in mixed(1).images.values()]
    upload.take(flipped)
    assert [view.pixels.data_ptr() for view in upload.views.now] == where
    assert torch.equal(upload.views.table, table)
    for view, frame in zip(upload.views.now, flipped, strict=True):
        assert np.array_equal(view.pixels.numpy(), frame)
    upload.take(frames[::-1])
    assert not torch.equal(upload.views.table, table)


def test_after_an_error_the_next_frame_of_that_size_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    upload = ImageUpload(OPENPI.pixels, 14, 2, CPU)
    frames = list(mixed(0).images.values())

    def no_memory(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(upload.views, "point", no_memory)
        upload.take(frames)
    upload.take(frames)
    assert len(upload.views.now) == 2
    for view, frame in zip(upload.views.now, frames, strict=True):
        assert np.array_equal(view.pixels.numpy(), frame)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_refused_observation_holds_no_slot_and_the_next_is_computed(groups: int) -> None:
    engine, alone = (Engine(make_policy(), fast=True, prefill_groups=groups) for _ in range(2))
    observation = make_observation()
    for changes, message in (
        ({"images": {}}, "observation.images is empty"),
        ({"images": {CAMERA: np.zeros((9, 9, 3), np.uint8)}}, "the policy knows"),
        ({"state": np.array([np.nan] * 6, np.float32)}, "must be finite"),
        ({"state": np.zeros(1000, np.float32)}, r"has shape \[1000\]"),
        ({"state": None}, "of type NoneType"),
        ({"instruction": "reach " * 60}, "shorten the instruction"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.observe(replace(observation, **changes))
    assert engine.runner.pool.free == engine.runner.pool.slots
    chunks = [one.act(one.observe(observation)) for one in (engine, alone)]
    assert np.array_equal(chunks[0].actions, chunks[1].actions)


def stages_on_gpu(kind: str = "pi05") -> Stages:
    config = make_config(kind)
    model = make_model(config).to("cuda").set_precision(torch.bfloat16)
    pool = KVPool(config.prefix, 4, config.max_tokens, torch.device("cuda"), torch.bfloat16)
    return Stages(model, pool)


@pytest.mark.gpu
def test_a_captured_stage_takes_other_sizes_without_being_captured_again() -> None:
    stages, prompt = stages_on_gpu(), torch.tensor([4, 5, 6])
    encode, graphs = stages.encode(2), set[Any]()
    for seed, sizes in enumerate(((LARGE, TALL), (TALL, LARGE), ((28, 28), (480, 640)), (LARGE, TALL))):
        frames = list(mixed(seed, sizes).images.values())
        stages.observe([frames], [prompt], [0])
        graphs.update(encode._graphs.values())
        assert encode.captured and len(graphs) == 1
        here = image.Views(OPENPI.pixels, 28, 2, CPU)
        here.point([here.view(torch.from_numpy(frame)) for frame in frames])
        expected = torch.empty(encode.patches.shape)
        image.patches(here, 14, expected)
        assert torch.equal(encode.patches.cpu(), expected)


@pytest.mark.gpu
def test_a_frame_allocates_nothing_and_is_computed_as_launch_by_launch() -> None:
    stages, prompt = stages_on_gpu(), torch.tensor([4, 5, 6])
    frames = [list(mixed(seed).images.values()) for seed in range(4)]
    for one in frames[:2]:
        stages.observe([one], [prompt], [0])
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    stages.observe([frames[2]], [prompt], [1])
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    encode = stages.encode(2)
    captured = encode.tokens.clone()
    with torch.inference_mode():
        encode.body()
    assert torch.equal(encode.tokens, captured)


@pytest.mark.gpu
@pytest.mark.parametrize("mapped", [False, True], ids=["page-locked", "mapped"])
def test_registered_memory_is_copied_from_where_it_lies(mapped: bool) -> None:
    memory = np.zeros(8 << 20, np.uint8)
    start = -memory.ctypes.data % 4096
    registration = Registration(memory[start:].ctypes.data, 4 << 20, mapped=mapped)
    frame = memory[start : start + 60 * 90 * 3].reshape(60, 90, 3)
    frame[:] = np.random.default_rng(0).integers(0, 256, frame.shape, np.uint8)
    expected, upload = (
        torch.from_numpy(frame.copy()),
        ImageUpload(OPENPI.pixels, 28, 1, torch.device("cuda")),
    )
    for _ in range(3):
        upload.take([frame], lambda: frame.fill(0))
        assert torch.equal(upload.views.now[0].pixels.cpu(), expected)
        frame[:] = expected.numpy()
        upload.read()
    registration.end()


@pytest.mark.gpu
def test_images_may_be_overwritten_after_an_error_while_they_are_copied() -> None:
    upload = ImageUpload(OPENPI.pixels, 28, 2, torch.device("cuda"))
    pinned = torch.full((4000, 4000, 3), 7, dtype=torch.uint8).pin_memory().numpy()
    upload.take([pinned, pinned])
    for _ in range(8):
        pinned.fill(7)
        with pytest.raises(TypeError):
            upload.begin([pinned, np.zeros((4000, 4000, 3), object)])
        pinned.fill(0)
        torch.cuda.synchronize()
        assert (upload.views.now[0].pixels == 7).all()


@pytest.mark.gpu
def test_frames_do_not_overtake_the_stage_that_reads_them() -> None:
    """Each prefix is of its own frame, though frames come faster than they are encoded."""
    stages, prompt = stages_on_gpu(), torch.tensor([4, 5, 6])
    frames = [list(mixed(seed).images.values()) for seed in range(4)]
    for slot, one in enumerate(frames):
        stages.observe([one], [prompt], [slot])
    together = stages.pool.k.clone()
    for slot, one in enumerate(frames):
        torch.cuda.synchronize()
        stages.observe([one], [prompt], [slot])
    torch.cuda.synchronize()
    assert torch.equal(stages.pool.k, together)


@pytest.mark.gpu
def test_captured_towers_are_the_plain_ones(tmp_path: Path) -> None:
    policy: Any = load_policy(make_openvla_folder(tmp_path, seed=3), "cuda", torch.bfloat16)
    fast = Engine(policy, fast=True)
    for seed, size in enumerate(((48, 64), (48, 64), (200, 31))):
        observation = make_openvla_observation(seed, size=size)
        expected = policy.embed(policy.inputs(observation))[0]
        with fast.observe(observation) as prefix:
            found = embeddings(fast, prefix)
            torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=2e-2)
