"""Computes a frame's prefix into its slot, and prefixes of the same frame with other words.

What such a second prefix reuses: image tokens do not depend on the words, so a frame's images are encoded
once, however many questions are asked. From the second layer on, keys and values of a token depend on every
token that it attends to. In a causal prefix (OpenVLA) those are the earlier ones: keys and values up to the
first different word are copied and only the rest is computed. In PaliGemma's prefix (pi0, pi0.5) every token
attends to every word, so another word changes all keys and values, and the whole prefill is computed again;
models were never trained to continue anything else.

A frame is computed in one go or, with `EngineConfig.prefill_groups`, one group of layers at a time. Its
request holds the slot from the first to the last group, which publishes the prefix; nobody can read it
before. A request that is cancelled or fails between two groups frees the slot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.current_stream import current_stream, on_stream
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import Prefix, Prefixes
from vla_accel_ros.engine.request import Request, Status, Waits, failing_alone
from vla_accel_ros.engine.robots import Embodiment, Robots
from vla_accel_ros.engine.stages.memory.upload import on_host
from vla_accel_ros.engine.stages.prefill.towers import Towers
from vla_accel_ros.models.network_policy import PolicyInputs
from vla_accel_ros.models.policies import AnyPolicy, WordedPolicy
from vla_accel_ros.timeline import TIMELINE, flow
from vla_accel_ros.types import Observation

ENCODED_ONLY = (
    "frames share forwards with their actions, so nothing continues them: use token_mode sequential "
    "without fast."
)


class Extent(NamedTuple):
    """Number of all tokens of a prefix, and of its image tokens."""

    n_tokens: int
    n_images: int


class Part(Protocol):
    """A frame in progress. slot: where it is computed; length, images: number of all tokens, and of image
    tokens; stage: the next one, empty once all are computed."""

    slot: int

    @property
    def length(self) -> int: ...
    @property
    def images(self) -> int: ...
    @property
    def stage(self) -> str: ...
    def drop(self) -> None: ...


class Prefill(ABC):
    """Computes prefixes into held slots of one pool. batches: whether `observe_together` computes several in
    one forward; in_parts: whether it computes a frame in several micro-batches, from `begin` on."""

    batches: bool = False
    in_parts: bool = False

    @abstractmethod
    def observe(self, observation: Observation, policy: AnyPolicy, slot: int) -> Extent:
        """Compute the prefix of an observation with a robot's policy; the images are not needed after this.

        Raises ValueError if the policy cannot take the observation, Torn if its images were overwritten.
        """

    def observe_together(
        self, observations: Sequence[Observation], policies: Sequence[AnyPolicy], slots: Sequence[int]
    ) -> list[Extent]:
        """Like `observe`, for several observations with the same number of images in one forward."""
        raise NotImplementedError

    def captured(self, request: Request) -> bool:
        """Whether captured stages compute all of an OBSERVE request."""
        return True

    def begin(self, observation: Observation, policy: AnyPolicy, slot: int) -> Part:
        """Compute the first part of a frame. The images are needed until `launched`'s function has returned,
        which raises Torn, or the frame is advanced or dropped.

        Raises ValueError if the policy cannot take the observation.
        """
        raise NotImplementedError

    def advance(self, frame: Any) -> None:
        """Compute the frame's next part. Raises the error that ended the frame, and Torn."""
        raise NotImplementedError

    def launched(self, frame: Any) -> Callable[[], None] | None:
        """Returns a function that waits for the work launched so far; None: it is computed."""
        raise NotImplementedError

    def kept(self, prefix: Prefix) -> Mapping[str, Any]:
        """What its chunks read of a frame, by name."""
        raise NotImplementedError

    @abstractmethod
    def reword(self, frame: Prefix, instruction: str, slot: int) -> int:
        """Compute the prefix of a held frame with other words; returns its number of tokens."""

    @abstractmethod
    def last_hidden(self, slot: int, n_tokens: int) -> Tensor:
        """The hidden state [W] of a prefix's last token after the final norm, from which decoding begins."""


def worded_policy(frame: Prefix) -> WordedPolicy:
    """The policy of the robot for which a frame was computed."""
    return cast(WordedPolicy, frame.embodiment.policy)


class Preprocess:
    """Turns observations into a policy's inputs. Safe to use from several threads."""

    def __init__(self, policy: AnyPolicy):
        self._policy = policy
        self._stream = torch.cuda.Stream(policy.device) if policy.device.type == "cuda" else None

    def __call__(self, observation: Observation, policy: AnyPolicy | None = None) -> PolicyInputs:
        """Returns the inputs; the observation's images are not needed after this. policy: a robot's, on the
        same device.

        Raises ValueError if the policy cannot take the observation, Torn if its images were overwritten.
        """
        began_ns = TIMELINE.now_ns()
        inputs = self._inputs(observation, policy or self._policy)
        TIMELINE.span("upload", "inputs", began_ns, flows=(flow(observation.stamp_ns, observation.robot),))
        observation.check_intact()
        return inputs

    def _inputs(self, observation: Observation, policy: AnyPolicy) -> PolicyInputs:
        if self._stream is None:
            return policy.inputs(observation)
        with on_stream(self._stream):
            inputs = policy.inputs(observation, self.upload)
            copied = self._stream.record_event()
        copied.synchronize()
        reader = current_stream(self._policy.device)
        for tensor in (inputs.images, inputs.tokens, inputs.state, *inputs.more.values()):
            tensor.record_stream(reader)
        return inputs

    def upload(self, image: np.ndarray) -> Tensor:
        """uint8 [H, W, 3] on the GPU, in the current stream's order: a copy, or mapped host memory itself."""
        return on_host(image, self._policy.device).to(self._policy.device, non_blocking=True)


class EncodeOnly(Prefill):
    """Only encodes, for policies whose prefill is part of packed forwards; these read a slot's `embeddings`.

    towers: encode images instead of the plain network.
    """

    def __init__(self, policy: WordedPolicy, pool: KVPool, towers: Towers | None = None) -> None:
        self._towers, self._preprocess = towers, Preprocess(policy)
        self._kept = pool.k.new_zeros(pool.slots, policy.config.max_tokens, policy.config.prefix.width)

    def observe(self, observation: Observation, policy: AnyPolicy, slot: int) -> Extent:
        if self._towers is not None:
            n_tokens, n_words = self._towers.embed(observation, policy, self._kept[slot])
            return Extent(n_tokens, n_tokens - n_words)
        inputs = self._preprocess(observation, policy)
        embeddings = cast(WordedPolicy, policy).embed(inputs)[0]
        self._kept[slot, : len(embeddings)].copy_(embeddings)
        return Extent(len(embeddings), len(embeddings) - len(inputs.tokens))

    def embeddings(self, slot: int, n_tokens: int) -> Tensor:
        """[1, T, W]"""
        return self._kept[slot, None, :n_tokens]

    def reword(self, frame: Prefix, instruction: str, slot: int) -> int:
        raise ValueError(ENCODED_ONLY)

    def last_hidden(self, slot: int, n_tokens: int) -> Tensor:
        raise ValueError(ENCODED_ONLY)


class _InProgress(NamedTuple):
    """frame: holds its slot; robot: the embodiment at the frame's beginning."""

    frame: Part
    robot: Embodiment


class Frames:
    """Computes OBSERVE requests of one engine. apart: actions use another stream than frames."""

    def __init__(
        self, prefill: Prefill, pool: KVPool, prefixes: Prefixes, robots: Robots, apart: bool = False
    ) -> None:
        self._prefill, self._pool, self._prefixes, self._robots = prefill, pool, prefixes, robots
        self._apart = apart

    def run(self, request: Request) -> Callable[[], None] | None:
        """Compute and publish a frame, or compute its next part. Raises as Prefill.observe does.

        In parts, returns a function that waits for the part. The last one publishes the frame at once,
        because later work waits for it on the device.

        A whole frame is published at once, and None is returned. But if actions have another stream
        (`apart`), the returned function waits for the frame and publishes it: an action that began earlier on
        it would hold up all actions in its stream.
        """
        if self._prefill.in_parts:
            return self._advance(request)
        observation = request.observation
        assert observation is not None
        robot = self._robots.of(observation.robot)
        with self._pool.filling() as slot:
            observations = self._prefill.observe(observation, robot.policy, slot)
            publish = partial(self._publish, request, slot, observation, robot, observations)
            return self._once_computed([request], [slot], publish)

    def run_together(self, requests: Sequence[Request]) -> Callable[[], None] | None:
        """Compute several frames in one forward, and publish them as `run` does. If that fails or the prefill
        cannot batch, each frame is computed alone, so that it fails alone. Frames without a free slot wait
        again, if they wait for room."""
        free = self._pool.free
        for request in requests[free:]:
            if request.waits is not Waits.NOTHING:
                request.status = Status.WAITING
        requests = [request for request in requests if request.begun]
        if not self._prefill.batches:
            return self._one_by_one(requests)
        observations = [cast(Observation, request.observation) for request in requests]
        try:
            robots = [self._robots.of(observation.robot) for observation in observations]
            policies = [robot.policy for robot in robots]
            with ExitStack() as stack:
                slots = [stack.enter_context(self._pool.filling()) for _ in observations]
                extents = self._prefill.observe_together(observations, policies, slots)
        except Exception:
            return self._one_by_one(requests)

        def publish() -> None:
            for frame in zip(requests, slots, observations, robots, extents, strict=True):
                self._publish(*frame)

        return self._once_computed(requests, slots, publish)

    def _one_by_one(self, requests: Sequence[Request]) -> Callable[[], None] | None:
        waits = list[tuple[Request, Callable[[], None]]]()
        for request in requests:
            with failing_alone(request):
                if (wait := self.run(request)) is not None:
                    waits.append((request, wait))

        def wait_for(request: Request, wait: Callable[[], None]) -> None:
            with failing_alone(request):
                wait()

        def wait_for_all() -> None:
            with ExitStack() as all_of_them:  # each is waited for, whatever another one raises
                for wait in reversed(waits):
                    all_of_them.callback(wait_for, *wait)

        return wait_for_all if waits else None

    def _once_computed(
        self, requests: Sequence[Request], slots: Sequence[int], publish: Callable[[], None]
    ) -> Callable[[], None] | None:
        """Publish now; or, apart, return a function that waits for the stream's work and publishes, and frees
        the slots if that fails."""
        if not self._apart:
            publish()
            return None
        for request in requests:
            request.status = Status.LAUNCHED
        computed = current_stream(self._pool.k.device).record_event()

        def publish_then() -> None:
            with ExitStack() as stack:
                for slot in slots:
                    stack.enter_context(self._pool.keeping(slot))
                computed.synchronize()
                publish()

        return publish_then

    def _publish(
        self, request: Request, slot: int, observation: Observation, robot: Embodiment, seen: Extent
    ) -> None:
        request.finish(self._prefixes.publish(slot, observation, robot, *seen))

    def drop(self, request: Request) -> None:
        """Free the slot of an unfinished request."""
        progress: _InProgress | None = request.progress
        request.progress = None
        if progress is not None:
            progress.frame.drop()
            self._pool.release(progress.frame.slot)

    def _advance(self, request: Request) -> Callable[[], None] | None:
        progress: _InProgress | None = request.progress
        observation = request.observation
        assert observation is not None
        if progress is None:
            robot = self._robots.of(observation.robot)
            with self._pool.filling() as slot:
                progress = _InProgress(self._prefill.begin(observation, robot.policy, slot), robot)
            request.progress = progress
        else:
            self._prefill.advance(progress.frame)
        frame, robot = progress
        if frame.stage:
            request.stage = frame.stage
            return self._prefill.launched(frame)
        request.progress = None
        self._publish(request, frame.slot, observation, robot, Extent(frame.length, frame.images))
        return self._prefill.launched(frame)
