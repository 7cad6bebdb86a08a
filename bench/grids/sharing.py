"""Action and language of one model: the ways to serve both, on the same stages (OxyGen's grid).

`Shared` is ours: one prefill feeds actions and text, texts of several frames advance together, k tokens a
frame, actions first. `Isolated` is the same stages one request after another: a prefill for the actions, one
for the text, and the text token by token. `Plain` is the same in plain torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from shared.decoding import decode
from shared.timing import Window, median_ms
from vla_accel_ros.engine.kv.pages import PagePool
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.runner.answers import Answer, Answers, Said
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.flow.sampling import sample
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.tools.bench.subjects import Inputs

PAGE_TOKENS = 16


class Ran(NamedTuple):
    """Results of a run of frames: its window, numbers of frames, chunks, tokens and text forwards, and, by
    observation, texts and actions."""

    window: Window
    frames: int
    chunks: int
    tokens: int
    forwards: int
    texts: list[tuple[int, tuple[int, ...]]]
    actions: dict[int, Tensor]


class Shared:
    """Ours, over one pool of prefixes and tails. inputs: observations, used in turn."""

    def __init__(self, model: Pi, inputs: Sequence[Inputs], most: int, tokens: int) -> None:
        """most: open texts; tokens: of the longest."""
        self.device, sizes = model.embed_table.device, model.config.prefix
        dtype = model.language_model.dtype
        longest = max(_prefix_tokens(model, item) for item in inputs)
        pool = KVPool(sizes, most + 2, longest, self.device, dtype)
        pages = PagePool(sizes, (most + 1) * -(-tokens // PAGE_TOKENS), PAGE_TOKENS, self.device, dtype)
        self.model, self.inputs, self.most = model, inputs, most
        self.pool, self.stages = pool, Stages(model, pool)
        self.forward = PackedForward(model.language_model, sizes, longest + tokens)
        self.answers = Answers(model, pool, pages, stop=None, forward=self.forward)
        self._frame = 0

    def act(self, index: int, steps: int) -> tuple[int, int, Tensor]:
        """A frame's actions, on the host: slot (held), tokens of the prefix, actions [1, H, A]."""
        inputs = self.inputs[index]
        slot = self.pool.acquire()
        (length,) = self.stages.observe([inputs.frames], [inputs.prompt], [slot])
        flow = self.stages.act(inputs.noise, inputs.state, [slot], [length], steps)
        return slot, length, flow.actions.cpu()

    def ask(self, slot: int, length: int, tokens: int) -> Answer:
        """Begin a text on a held prefix, which is released."""
        answer = self.answers.begin(slot, length, self.stages.last_hidden(slot, length), tokens)
        self.pool.release(slot)
        return answer

    def advance(self) -> list[Said]:
        """Compute a token of every text; frees what finished texts hold."""
        steps_done = self.answers.advance()
        for step in steps_done:
            if step.finished:
                self.answers.drop(step.answer)
        return steps_done

    def run(
        self,
        frames: Sequence[Sequence[int]],
        steps: int,
        k: int,
        warm: int,
        least: int = 0,
        seconds: float = math.inf,
    ) -> Ran:
        """Frames with the lengths of the texts that begin with each; the first `warm` do not count.

        least: of the others that are run even if they take more than so many seconds.
        """
        begun: dict[Answer, int] = {}
        texts: list[tuple[int, tuple[int, ...]]] = []
        actions: dict[int, Tensor] = {}
        window, counted, chunks, said_tokens, forwards = Window(self.device), 0, 0, 0, 0
        for number, lengths in enumerate(frames):
            if number == warm:
                counted = chunks = said_tokens = forwards = 0
                window = Window(self.device).__enter__()
            if number >= warm + max(1, least) and window.open_s > seconds:
                break
            counted += 1
            start = time.perf_counter()
            for tokens in lengths:
                index = len(begun) % len(self.inputs)
                slot, length, actions[index] = self.act(index, steps)
                window.ages_s.append(time.perf_counter() - start)
                begun[self.ask(slot, length, tokens)] = index
            chunks += len(lengths)
            for _ in range(k):
                if not self.answers.open:
                    break
                steps_done = self.advance()
                said_tokens, forwards = said_tokens + len(steps_done), forwards + 1
                for step in steps_done:
                    if step.finished:
                        texts.append((begun[step.answer], tuple(step.answer.tokens)))
        window.__exit__()
        self.clear()
        return Ran(window, counted, chunks, said_tokens, forwards, texts, actions)

    def prepare(self, steps: int, tokens: int) -> None:
        """Capture what any number of texts needs, up to `most`."""
        for number in range(self.most):
            slot, length, _ = self.act(number % len(self.inputs), steps)
            self.ask(slot, length, tokens)
            if number & (number + 1) == 0 or number + 1 == self.most:
                self.advance()
                self.advance()
        self.clear()

    def parts_ms(self, steps: int) -> dict[str, float]:
        """Medians of what a frame is made of; `decode B`: a forward of that many texts, without the head."""
        inputs, slot = self.inputs[0], self.pool.acquire()
        (length,) = self.stages.observe([inputs.frames], [inputs.prompt], [slot])
        calls: dict[str, Callable[[], object]] = {
            "observe": lambda: self.stages.observe([inputs.frames], [inputs.prompt], [slot]),
            "act": lambda: self.stages.act(inputs.noise, inputs.state, [slot], [length], steps),
            "last hidden": lambda: self.stages.last_hidden(slot, length),
        }
        calls |= {f"decode {stage.work.rows}": stage.run for stage in self.forward.stages}
        for rows in (1, self.most):
            hidden = torch.zeros(rows, self.model.config.prefix.width, device=self.device)
            hidden = hidden.to(self.model.language_model.dtype)
            calls[f"head {rows}"] = partial(self._head, hidden)
        times_ms = {name: median_ms(call, self.device, 20)["p50_ms"] for name, call in calls.items()}
        self.pool.release(slot)
        return times_ms

    @torch.inference_mode()
    def _head(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden).argmax(dim=-1)

    def clear(self) -> None:
        """Forget all texts."""
        for answer in tuple(self.answers.open):
            self.answers.drop(answer)


class Isolated:
    """The stages of `shared`, every task of every request by itself."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def run(self, requests: int, steps: int, tokens: int, warm: int = 1) -> Ran:
        """So many requests one after another, of so many tokens each."""
        shared, texts, actions = self._shared, [], {}
        window = Window(shared.device)
        for number in range(warm + requests):
            if number == warm:
                window = Window(shared.device).__enter__()
            start, index = time.perf_counter(), number % len(shared.inputs)
            actions[index] = self.act(index, steps)
            window.ages_s.append(time.perf_counter() - start)
            texts.append((index, self.say(index, tokens)))
        window.__exit__()
        return Ran(window, requests, requests, requests * tokens, requests * tokens, texts, actions)

    def act(self, index: int, steps: int) -> Tensor:
        """The actions of an observation, from its images, on the host."""
        slot, _, actions = self._shared.act(index, steps)
        self._shared.pool.release(slot)
        return actions

    def say(self, index: int, tokens: int) -> tuple[int, ...]:
        """The text of an observation, from its images."""
        shared, inputs = self._shared, self._shared.inputs[index]
        slot = shared.pool.acquire()
        (length,) = shared.stages.observe([inputs.frames], [inputs.prompt], [slot])
        answer = shared.ask(slot, length, tokens)
        while shared.answers.open:
            shared.advance()
        return tuple(answer.tokens)


class Plain:
    """The reference modules, without capture."""

    def __init__(self, model: Pi, inputs: Sequence[Inputs]) -> None:
        self._model, self._inputs = model, inputs

    @torch.inference_mode()
    def run(self, requests: int, steps: int, tokens: int, warm: int = 1) -> Ran:
        """As Isolated.run."""
        model, device = self._model, self._model.embed_table.device
        texts, actions = [], {}
        window = Window(device)
        for number in range(warm + requests):
            if number == warm:
                window = Window(device).__enter__()
            start, index = time.perf_counter(), number % len(self._inputs)
            inputs = self._inputs[index]
            _, kv = model.prefix(self._embedded(inputs))

            def velocity(x: Tensor, t: float, inputs: Inputs = inputs, kv=kv) -> Tensor:  # type: ignore[no-untyped-def]
                return model.velocity(x, torch.full((1,), t, device=device), inputs.state, kv)

            actions[index] = sample(velocity, inputs.noise, steps).actions.cpu()
            window.ages_s.append(time.perf_counter() - start)
            hidden, kv = model.prefix(self._embedded(inputs))
            tokens_of_text = [int(step.tokens) for step in decode(model, kv, hidden[:, -1], tokens)]
            texts.append((index, tuple(tokens_of_text)))
        window.__exit__()
        return Ran(window, requests, requests, requests * tokens, requests * tokens, texts, actions)

    def _embedded(self, one: Inputs) -> Tensor:
        images = self._model.encode(one.images).flatten(0, 1)
        words = self._model.embed_tokens(one.prompt)
        return torch.cat((images, words.to(images.dtype)))[None]


def _prefix_tokens(model: Pi, one: Inputs) -> int:
    """Room for a prefix and the padding of its prompt."""
    return one.images.shape[0] * model.config.vision.tokens + -(-len(one.prompt) // 16) * 16


def equal_part(tokens: list[tuple[int, ...]], expected: list[tuple[int, ...]]) -> float:
    """Share of the tokens that are as expected, 0 to 1."""
    pairs = [
        pair for ours, other in zip(tokens, expected, strict=True) for pair in zip(ours, other, strict=True)
    ]
    return round(sum(ours == other for ours, other in pairs) / max(1, len(pairs)), 4)
