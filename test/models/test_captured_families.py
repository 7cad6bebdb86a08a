"""Families with text once an instruction, videos in parts, a context once a chunk, or a chunk in one forward:
captured, they give the plain engine's bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastwam_oracle import FastWAMOracle
from guiding import guidance_to
from mimic_video_oracle import MimicVideoOracle
from openvla_oft_oracle import OFTOracle
from recorded_graphs import recorded_graphs
from smolvla_recording import make_smolvla_folder
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from xvla_oracle import XVLAOracle

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.options import has_stages
from vla_accel_ros.engine.request import Act, Observe, Request
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.engine.stages.plain.kernels import PlainStage
from vla_accel_ros.engine.stages.plain.stages import PlainStages
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.micro_requests import DENOISE, INDEX, PIXELS, micro_batches
from vla_accel_ros.models.policies import computed
from vla_accel_ros.types import Chunk, Observation, Torn

STEPS, OTHER = 3, "open the drawer"
RECORDINGS: dict[str, Callable[[str], Any]] = {
    "fastwam": lambda device: FastWAMOracle.load("fastwam/checkpoint", device),
    "mimic_video": lambda device: MimicVideoOracle.load("mimic_video 0", device),
    "mimic_video 2": lambda device: MimicVideoOracle.load("mimic_video 2", device),
    "openvla_oft": lambda device: OFTOracle.load("openvla_oft", device),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"lanes": "two"},
    {"staggered": 2, "slots": 6},
    {"scheduling": "batches"},
)
DEVICES = ["cpu", "recorded", pytest.param("cuda", marks=pytest.mark.gpu)]
"""recorded: graphs on a CPU, see recorded_graphs."""


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Without kernels, which round otherwise than plain torch does."""
    graphs = recorded_graphs() if request.param == "recorded" else nullcontext()
    with graphs, pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainStage, "ops", None)
        yield request.param.replace("recorded", "cpu")


@pytest.fixture(scope="module", params=RECORDINGS)
def recording(request: pytest.FixtureRequest, device: str) -> Any:
    return RECORDINGS[request.param](device)


@pytest.fixture(scope="module")
def video(device: str) -> Any:
    """A mimic-video whose frame is computed in several parts."""
    return RECORDINGS["mimic_video 2"](device)


def frames_of(recording: Any) -> list[Observation]:
    """The recorded frame, others of its size, and other words, of which some come again."""
    first, random = recording.observation, np.random.default_rng(3)
    frames = [first]
    for number, words in enumerate((OTHER, first.instruction, OTHER, OTHER), 1):
        images = {n: random.integers(0, 256, i.shape, np.uint8) for n, i in first.images.items()}
        state = (first.state + 0.03 * number).astype(np.float32)
        frames.append(Observation(images, state, words, number))
    return frames


def assert_same(ours: Chunk, plain: Chunk) -> None:
    """To the bit."""
    np.testing.assert_array_equal(ours.actions, plain.actions)
    if plain.step_magnitudes is not None:
        np.testing.assert_array_equal(ours.step_magnitudes, plain.step_magnitudes)
    assert np.isfinite(plain.actions).all()


def engines_of(policy: Any, **options: Any) -> tuple[Engine, Engine]:
    """The plain one, and that with captured stages."""
    return Engine(policy, steps=STEPS, **options), Engine(policy, steps=STEPS, **options, fast=True)


def acted(engine: Engine, frame: Observation, number: int = 5) -> list[Chunk]:
    """A frame's chunk, and another one on newer joints or from other noise."""
    with engine.observe(frame) as prefix:
        if engine.policy.chain.acts != DENOISE:
            return [engine.act(prefix), engine.act(prefix, frame.state + 0.05)]
        return [engine.act(prefix, noise=number), engine.act(prefix, noise=number + 1, steps=STEPS)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_captured_chunks_are_the_plain_ones(recording: Any, options: dict[str, Any]) -> None:
    if recording.policy.chain.acts != DENOISE and "staggered" in options:
        options = {"scheduling": "throughput"}
    plain, fast = engines_of(recording.policy, **options)
    assert isinstance(fast.runner.stages, PlainStages)
    chunks = [acted(plain, frame) for frame in frames_of(recording)]
    for frame, expected in zip(frames_of(recording), chunks, strict=True):
        for ours, chunk in zip(acted(fast, frame), expected, strict=True):
            assert_same(ours, chunk)
    assert len({chunk.actions.tobytes() for both in chunks for chunk in both}) == 2 * len(chunks)


def test_captured_chunks_are_the_same_from_frames_held_at_once_and_again(recording: Any) -> None:
    plain, fast, again = *engines_of(recording.policy, slots=8), engines_of(recording.policy, slots=8)[1]
    frames = frames_of(recording)
    expected = [acted(plain, frame)[0] for frame in frames]
    given: dict[str, Any] = {} if recording.policy.chain.acts != DENOISE else {"noise": 5}
    for engine in (fast, again):
        held = [engine.observe(frame) for frame in frames]
        for number in (0, 3, 0, 1, 2, 4):
            assert_same(engine.act(held[number], **given), expected[number])
        for prefix in held:
            prefix.release()
        assert engine.runner.pool.free == engine.runner.pool.slots - 1, "the newest is held"


@pytest.mark.parametrize("name", ["fastwam", "mimic_video"])
@pytest.mark.parametrize("staggered", [0, 2])
def test_captured_guided_and_committed_chunks_are_the_plain_ones(
    name: str, device: str, staggered: int
) -> None:
    policy = RECORDINGS[name](device).policy
    committed = replace(policy, trained_delay=3) if name == "mimic_video" else policy
    chunks = list[Chunk]()
    for engine in engines_of(committed, staggered=staggered, slots=8):
        with engine.observe(RECORDINGS[name]("cpu").observation) as prefix:
            previous = engine.act(prefix, noise=1)
            for jacobian in ("identity", "exact"):
                guidance = guidance_to(engine, prefix, previous, 2, 4, jacobian=jacobian)
                chunks.append(engine.act(prefix, noise=2, guidance=guidance))
            if committed.trained_delay:
                chunks.append(engine.act(prefix, noise=2, committed=previous.actions[:2]))
    half = len(chunks) // 2
    for plain, ours in zip(chunks[:half], chunks[half:], strict=True):
        assert_same(ours, plain)


@pytest.mark.parametrize("name", ["fastwam", "mimic_video 2"])
def test_captured_words_are_computed_once_an_instruction(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, runs = RECORDINGS[name](device), list[int]()
    policy = recording.policy
    encode = type(policy).text_encode

    def counted(self: Any, words: Tensor) -> Any:
        runs.append(len(words))
        return encode(self, words)

    monkeypatch.setattr(type(policy), "text_encode", counted)
    _, fast = engines_of(policy)
    for frame in frames_of(recording):
        acted(fast, frame)
    assert len(runs) == 2


def test_a_frame_with_new_words_is_left_to_the_worker(recording: Any) -> None:
    """It encodes them eagerly, which would hold up what the engine's thread launches."""
    _, fast = engines_of(recording.policy)
    first, other = (Request(Observe(frame)) for frame in frames_of(recording)[:2])
    has_text = recording.policy.config.kind != "openvla_oft"
    assert fast.runner.prefill.captured(first) == (not has_text)
    acted(fast, recording.observation)
    assert fast.runner.prefill.captured(first)
    assert fast.runner.prefill.captured(other) == (not has_text)


def test_captured_text_weights_may_stay_on_the_host(device: str) -> None:
    for name in ("fastwam", "mimic_video"):
        chunks = list[Chunk]()
        for fast, offload in ((False, "none"), (True, "text")):
            recording = RECORDINGS[name](device)
            engine = Engine(recording.policy, steps=STEPS, fast=fast, offload=offload)
            chunks += acted(engine, recording.observation)
        places = {parameter.device.type for parameter in recording.policy.model.text_encoder.parameters()}
        assert places == {"cpu"}
        assert_same(chunks[2], chunks[0])


def test_a_prepared_engine_has_the_same_chunks_and_all_slots_free(recording: Any) -> None:
    plain, fast = engines_of(recording.policy)
    frame = recording.observation
    words = len(recording.policy.prompt(frame.instruction, frame.state))
    fast.prepare((1, len(frame.images)), range(words - 1, words + 2))
    assert fast.runner.pool.free == fast.runner.pool.slots
    for ours, chunk in zip(acted(fast, frame), acted(plain, frame), strict=True):
        assert_same(ours, chunk)


def test_frames_of_fewer_images_than_a_family_takes_are_not_prepared(
    recording: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, counts = recording.policy, set[int]()
    resized = type(policy).resized

    def counted(self: Any, images: list[Tensor]) -> Tensor:
        counts.add(len(images))
        return resized(self, images)

    monkeypatch.setattr(type(policy), "resized", counted)
    engines_of(policy)[1].prepare((1,), (4,))
    is_fixed = policy.config.kind in ("fastwam", "openvla_oft")
    assert counts == {len(policy.config.image_names) if is_fixed else 1}


@pytest.mark.parametrize("scheduling", ["staggered", "throughput", "batches"])
def test_captured_robots_with_their_own_words_get_what_they_get_alone(
    recording: Any, scheduling: str
) -> None:
    policy, words = recording.policy, {"a": recording.observation.instruction, "b": OTHER, "c": "push it"}
    robots = {name: Embodiment(policy, 0.02) for name in words}
    flow = policy.chain.acts == DENOISE
    options: dict[str, Any] = {"scheduling": "batches"}
    if flow:
        options = {"staggered": 3, "scheduling": scheduling}
    noise: dict[str, Any] = {"noise": 7} if flow else {}
    engine = Engine(policy, steps=STEPS, slots=8, robots=robots, fast=True, **options)
    frames = {
        name: replace(recording.observation, robot=name, instruction=text) for name, text in words.items()
    }
    prefixes = {name: engine.observe(frame) for name, frame in frames.items()}
    requests = [Request(Act(**noise), name, prefix) for name, prefix in prefixes.items()]
    for request in requests:
        engine.scheduler.submit(request)
    while engine.scheduler.step():
        pass
    for request in requests:
        alone = Engine(policy, steps=STEPS)
        with alone.observe(replace(frames[request.robot], robot="")) as prefix:
            expected = alone.act(prefix, **noise)
        assert isinstance(request.result, Chunk)
        assert_same(request.result, expected)
    for prefix in prefixes.values():
        prefix.release()


def test_a_captured_frame_that_is_cancelled_between_two_parts_frees_its_slot(video: Any) -> None:
    plain, fast = engines_of(video.policy)
    frame = fast.scheduler.submit(Request(Observe(video.observation)))
    fast.scheduler.step()
    assert frame.stage == "video_denoise" and fast.runner.pool.free == fast.runner.pool.slots - 1
    fast.scheduler.cancel(frame)
    fast.scheduler.step()
    assert fast.runner.pool.free == fast.runner.pool.slots
    assert_same(acted(fast, frames_of(video)[1])[0], acted(plain, frames_of(video)[1])[0])


def test_a_captured_frame_that_fails_between_two_parts_frees_its_slot(
    video: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, fast = engines_of(video.policy)
    resume = PlainStages.resume
    with monkeypatch.context() as patch:

        def fail(*arguments: Any) -> None:
            resume(*arguments)
            raise RuntimeError("no such part")

        patch.setattr(PlainStages, "resume", fail)
        with pytest.raises(RuntimeError, match="no such part"):
            fast.observe(video.observation)
    assert fast.runner.pool.free == fast.runner.pool.slots
    acted(fast, video.observation)


def test_of_a_torn_frame_no_part_is_kept(recording: Any) -> None:
    plain, fast = engines_of(recording.policy)

    def overwritten() -> bool:
        for picture in torn.images.values():
            picture[:] = 0
        return False

    torn = frames_of(recording)[1]
    with pytest.raises(Torn, match="overwritten"):
        fast.observe(replace(torn, intact=overwritten))
    assert fast.runner.pool.free == fast.runner.pool.slots
    assert_same(acted(fast, recording.observation)[0], acted(plain, recording.observation)[0])


def test_where_all_slots_are_held_a_captured_frame_is_refused_and_the_next_is_as_ever(video: Any) -> None:
    plain, fast = engines_of(video.policy, slots=2)
    frames = frames_of(video)
    held = [fast.observe(frame) for frame in frames[:2]]
    with pytest.raises(Exception, match="slot"):
        fast.observe(frames[2])
    for prefix in held:
        prefix.release()
    assert_same(acted(fast, frames[2])[0], acted(plain, frames[2])[0])


def test_on_a_gpu_they_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    for policy in (load("cpu").policy for load in RECORDINGS.values()):
        assert not has_stages(policy)
        with monkeypatch.context() as patch:
            patch.setattr(type(policy), "device", property(lambda self: torch.device("cuda")))
            assert has_stages(policy)


class OnDevice(TorchDispatchMode):
    """Refuses what cannot be captured: tensors of the host, and values that are waited for."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, result = str(func), func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        assert all(tensor.device.type == "meta" for tensor in tensors), f"{name} is of the host"
        assert "_local_scalar_dense" not in name and "nonzero" not in name, f"{name} waits for a value"
        return result


def on_meta(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, value)


@pytest.fixture(params=[*RECORDINGS, "smolvla", "xvla"])
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    def load() -> Any:
        if request.param == "smolvla":
            return load_policy(make_smolvla_folder(tmp_path / "smolvla"))
        if request.param == "xvla":
            return XVLAOracle.load("xvla/checkpoint", tmp_path / "xvla").policy
        return RECORDINGS[request.param]("cpu").policy

    return load


@pytest.mark.parametrize("views", [1, 2])
def test_what_is_captured_copies_nothing_from_the_host_and_waits_for_no_value(
    loaded: Callable[[], Any], views: int
) -> None:
    """A tensor of `meta` has no values, and takes none from the host without a copy."""
    policy = loaded()
    config, chain = policy.config, policy.chain
    words = torch.ones(min(4, config.max_prompt), dtype=torch.int64)
    if config.kind == "xvla":
        words = torch.ones(config.max_prompt, dtype=torch.int64)
    of_words: dict[str, Any] = {}
    for micro in chain.of_frame:
        if micro.kept == "instruction":
            of_words |= computed(policy, micro, {"words": words})
    policy.model.to("meta")
    count = len(config.image_names) if config.kind in ("fastwam", "openvla_oft") else views
    images = [torch.zeros(90, 70, 3, dtype=torch.uint8, device="meta") for _ in range(count)]
    more = {i.name: torch.zeros(i.shape, dtype=getattr(torch, i.dtype)) for i in chain.inputs}
    state, time = torch.zeros(config.state_dim), torch.ones(1)
    inputs = on_meta({"words": words, "state": state, **of_words, **more})
    noise = torch.zeros(1, config.horizon, config.action_dim)
    of_step = on_meta({"x": noise, "noise": noise, "t": time, "dt": time, "state": state[None]})

    def whole() -> None:
        given: dict[str, Any] = {**inputs, PIXELS: policy.resized(images)}
        for batch in micro_batches(chain.of_frame):
            for micro, given[INDEX] in batch:
                given |= computed(policy, micro, given)
        for micro in chain.of_chunk:
            given |= computed(policy, micro, given)
        if chain.acts == DENOISE:
            given |= of_step
        getattr(policy, chain.acts)(**{name: given[name] for name in chain.acting.reads})

    with torch.inference_mode():
        whole()  # as before a capture: what is made once is made
        with OnDevice():
            whole()
