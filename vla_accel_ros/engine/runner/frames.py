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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import takewhile
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.current_stream import current_stream, on_stream
from vla_accel_ros.engine.kv.pool import KVPool, Prefix, Prefixes
from vla_accel_ros.engine.request import ENCODE, PREFILL, Request, failing_alone
from vla_accel_ros.engine.robots import Embodiment, Robots
from vla_accel_ros.engine.stages.memory.upload import on_host
from vla_accel_ros.engine.stages.prefill.groups import Frame, Groups
from vla_accel_ros.engine.stages.prefill.towers import Towers
from vla_accel_ros.models.layers import packed
from vla_accel_ros.models.layers.packed import Forward, Segment
from vla_accel_ros.models.policies import AnyPolicy, WordedPolicy
from vla_accel_ros.models.policy import PolicyInputs
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


class Prefill(ABC):
    """Computes prefixes into held slots of one pool. batches: whether `observe_together` computes several in
    one forward; groups: the groups of layers in which it computes a frame from `begin` on, None: in one
    go."""

    batches: bool = False
    groups: Groups | None = None

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

    def begin(self, observation: Observation, policy: AnyPolicy, slot: int) -> Frame:
        """Compute the first group of a frame; the images are needed until `Frame.end_upload`, which raises
        Torn.

        Raises ValueError if the policy cannot take the observation.
        """
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
            taken = self._stream.record_event()
        taken.synchronize()
        reader = current_stream(self._policy.device)
        for tensor in (inputs.images, inputs.tokens, inputs.state):
            tensor.record_stream(reader)
        return inputs

    def upload(self, image: np.ndarray) -> Tensor:
        """uint8 [H, W, 3] on the GPU, in the current stream's order: a copy, or mapped host memory itself."""
        return on_host(image, self._policy.device).to(self._policy.device, non_blocking=True)


class PlainPrefill(Prefill):
    """Prefill by the plain network. forward: computes the rest of a causal prefix, None = in plain torch."""

    def __init__(self, policy: AnyPolicy, pool: KVPool, forward: Forward | None = None) -> None:
        self._policy, self._pool, self._preprocess = policy, pool, Preprocess(policy)
        width, config = policy.config.prefix.width, policy.config
        self._hidden = pool.k.new_zeros(pool.slots, width)
        self._images: Tensor | None = None
        if policy.decodes:
            self._worded = cast(WordedPolicy, policy)
            self._images = pool.k.new_zeros(pool.slots, config.max_tokens - config.max_prompt, width)
            self._forward: Forward = forward or partial(packed.forward, policy.model.stack)

    def observe(self, observation: Observation, policy: AnyPolicy, slot: int) -> Extent:
        inputs = self._preprocess(observation, policy)
        if self._images is None:
            n_tokens = self._whole(policy.embed(inputs), slot)
        else:
            images = self._worded.see(inputs)
            self._images[slot, : len(images)].copy_(images)
            n_tokens = self._whole(self._worded.join(images, inputs.tokens), slot)
        return Extent(n_tokens, n_tokens - len(inputs.tokens))

    def reword(self, frame: Prefix, instruction: str, slot: int) -> int:
        assert self._images is not None
        images = self._images[slot, : frame.n_images].copy_(self._images[frame.slot, : frame.n_images])
        worded = worded_policy(frame)
        words = worded.words(instruction, frame.state)
        embeddings = worded.join(images, words)
        if not worded.causal:
            return self._whole(embeddings, slot)
        before = worded.words(frame.instruction, frame.state)
        pairs = zip(words[:-1].tolist(), before.tolist())  # the last word's hidden state is needed
        alike = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        return self._rest(embeddings, frame.slot, slot, frame.n_images + alike if alike else 0)

    def last_hidden(self, slot: int, n_tokens: int) -> Tensor:
        return self._hidden[slot]

    def _whole(self, embeddings: Tensor, slot: int) -> int:
        n_tokens = embeddings.shape[1]
        hidden, _ = self._policy.model.prefix(embeddings, out=self._pool.view(slot, n_tokens))
        self._hidden[slot].copy_(hidden[0, -1])
        return n_tokens

    def _rest(self, embeddings: Tensor, source: int, slot: int, shared: int) -> int:
        n_tokens = embeddings.shape[1]
        for into, given in zip(self._pool.view(slot, shared), self._pool.view(source, shared), strict=True):
            into.copy_(given)
        past = (self._pool.span(slot, 0, shared),) if shared else ()
        out = self._pool.span(slot, shared, n_tokens)
        (hidden,) = self._forward([Segment(embeddings[:, shared:], past, causal=True, out=out)])
        self._hidden[slot].copy_(hidden[0, -1])
        return n_tokens


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
        embeddings = policy.embed(inputs)[0]
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

    frame: Frame
    robot: Embodiment


class Frames:
    """Computes OBSERVE requests of one engine. apart: actions use another stream than frames."""

    def __init__(
        self, prefill: Prefill, pool: KVPool, prefixes: Prefixes, robots: Robots, apart: bool = False
    ) -> None:
        self._prefill, self._pool, self._prefixes, self._robots = prefill, pool, prefixes, robots
        self._apart = apart

    def run(self, request: Request) -> Callable[[], None] | None:
        """Compute and publish a frame, or compute its next group. Raises as Prefill.observe does.

        With groups, returns a function that waits for the group. The last group publishes the frame at once,
        because later work waits for it on the device.

        A whole frame is published at once, and None is returned. But if actions have another stream
        (`apart`), the returned function waits for the frame and publishes it: an action that began earlier on
        it would hold up all actions in its stream.
        """
        if self._prefill.groups is not None:
            return self._advance(request, self._prefill.groups)
        observation = request.observation
        assert observation is not None
        robot = self._robots.of(observation.robot)
        with self._pool.filling() as slot:
            seen = self._prefill.observe(observation, robot.policy, slot)
            publish = partial(self._publish, request, slot, observation, robot, seen)
            return self._once_computed([request], [slot], publish)

    def run_together(self, requests: Sequence[Request]) -> Callable[[], None] | None:
        """Compute several frames in one forward, and publish them as `run` does. If that fails or the prefill
        cannot batch, each frame is computed alone, so that it fails alone. Frames without a free slot wait
        again, if they wait for room."""
        free = self._pool.free
        for request in requests[free:]:
            request.begun = not request.waits
        requests = [request for request in requests if request.begun]
        if not self._prefill.batches:
            return self._one_by_one(requests)
        seen = [cast(Observation, request.observation) for request in requests]
        try:
            robots = [self._robots.of(observation.robot) for observation in seen]
            policies = [robot.policy for robot in robots]
            with ExitStack() as held:
                slots = [held.enter_context(self._pool.filling()) for _ in seen]
                extents = self._prefill.observe_together(seen, policies, slots)
        except Exception:
            return self._one_by_one(requests)

        def publish() -> None:
            for found in zip(requests, slots, seen, robots, extents, strict=True):
                self._publish(*found)

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
                for one in reversed(waits):
                    all_of_them.callback(wait_for, *one)

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
            request.awaited = True
        computed = current_stream(self._pool.k.device).record_event()

        def publish_then() -> None:
            with ExitStack() as held:
                for slot in slots:
                    held.enter_context(self._pool.keeping(slot))
                computed.synchronize()
                publish()

        return publish_then

    def _publish(
        self, request: Request, slot: int, observation: Observation, robot: Embodiment, seen: Extent
    ) -> None:
        request.result = self._prefixes.publish(slot, observation, robot, *seen)
        request.finished = True

    def drop(self, request: Request) -> None:
        """Free the slot of an unfinished request."""
        doing: _InProgress | None = request.progress
        request.progress = None
        if doing is not None:
            doing.frame.drop()
            self._pool.release(doing.frame.slot)

    def _advance(self, request: Request, groups: Groups) -> Callable[[], None] | None:
        doing: _InProgress | None = request.progress
        observation = request.observation
        assert observation is not None
        if doing is None:
            robot = self._robots.of(observation.robot)
            with self._pool.filling() as slot:
                doing = _InProgress(self._prefill.begin(observation, robot.policy, slot), robot)
            request.progress = doing
        else:
            groups.advance(doing.frame)
        frame, robot = doing
        if frame.groups:
            request.stage = ENCODE if frame.encodes else PREFILL
            return groups.launched(frame)
        request.progress = None
        self._publish(request, frame.slot, observation, robot, Extent(frame.length, frame.images))
        request.awaited = True
        return groups.launched(frame)
