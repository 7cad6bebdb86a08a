"""Frames of an OpenVLA through captured forwards, every other one with a draft, against each alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from frame_stream import FrameStream, held_slots
from openvla_builders import make_openvla_observation

from shared.decoding import decode
from vla_accel_ros.engine.config import PIPELINED, RATE, SPECULATIVE
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.pages import PagePool
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.rules.rules import Rules
from vla_accel_ros.engine.rules.tokens import TokenFrames
from vla_accel_ros.engine.runner.answers import Answers
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.models.openvla.policy import OpenVLAPolicy
from vla_accel_ros.models.pi.model import Pi


class Alternating(TokenFrames):
    """Every other frame has a draft; what a frame still has to say rides with the frames after it."""

    drafted = False

    def schedule(self) -> str:
        self.drafted = not self.drafted
        return SPECULATIVE if self.drafted else PIPELINED


def assert_frames_say_what_they_say_alone(policy: OpenVLAPolicy, count: int) -> PackedForward:
    """Frames of several lengths; returns the forward, all of whose stages are captured on a GPU."""
    engine = Engine(policy, token_mode=SPECULATIVE, token_prefer=RATE, fast=True)
    engine.scheduler.rules = Rules(Alternating(SPECULATIVE, RATE, policy.joints), text=False)
    stream, seen = FrameStream(engine), {}
    for number in range(count):
        stream.robot = "ab"[number % 2]
        words = ("lift", "lift the red cup and take the red cup")[number % 2]
        seen[number] = replace(make_openvla_observation(number // 4), instruction=words, stamp_ns=number)
        stream.frames([seen[number]])
    last = engine.runner.prefixes.newest(stream.robot)
    assert last is not None
    with last as prefix:
        engine.act(prefix)  # whatever has begun rides to its end
    overtaken = [request.prefix.version for request in stream.dropped]
    assert sorted([chunk.kv_version for chunk in stream.chunks] + overtaken) == sorted(seen)
    assert len(overtaken) < count // 2 and not stream.errors and held_slots(engine, robots=2) == 0
    for request in stream.finished:
        with torch.inference_mode():
            embeddings = policy.embed(policy.inputs(seen[request.prefix.version]))
            hidden, past = policy.model.prefix(embeddings)
            said = [int(step.tokens) for step in decode(policy.model, past, hidden[:, -1], policy.joints)]
        assert request.tokens == said
    forward = engine.runner.packed_forward
    assert forward is not None
    assert all(stage.captured for stage in forward.stages) == (policy.device.type == "cuda")
    return forward


def assert_answers_say_what_they_say_alone(
    model: Pi, pool: KVPool, pages: PagePool, forward: PackedForward, lengths: Sequence[int], count: int
) -> None:
    """Of prefixes of these lengths, which come one after another while those before are answered."""
    answers = Answers(model, pool, pages, stop=None, forward=forward)
    made, wanted, said = torch.Generator().manual_seed(2), {}, []
    for tokens in lengths:
        slot = pool.acquire()
        with torch.inference_mode():
            embeddings = torch.randn(1, tokens, model.config.prefix.width, generator=made).to(pool.k.device)
            hidden, past = model.prefix(embeddings, out=pool.view(slot, tokens))
            alone = [int(step.tokens) for step in decode(model, past, hidden[:, -1], count)]
        wanted[answers.begin(slot, tokens, hidden[0, -1], count)] = alone
        said += answers.advance()
    while answers.open:
        said += answers.advance()
    assert {answer: [one.token for one in said if one.answer is answer] for answer in wanted} == wanted
