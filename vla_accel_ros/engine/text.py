"""An answer being written: the language head continues a prefix, token by token, as the reader asks.

The generated tokens' keys and values are kept apart from the prefix, because that one is shared with the
actions. The first token is read off the prefix's last one, which is valid because absent cameras and padding
are never in a prefix. What is yielded is text, not tokens (models.detokenising).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.decoding import Sampling, decode
from vla_accel_ros.models.detokenising import TextStream
from vla_accel_ros.models.gemma import KV
from vla_accel_ros.models.policies import AnyPolicy


class Answer(Iterator[str]):
    """Pieces of text, whose concatenation is the answer. tokens: what was generated so far.

    Ends at the end-of-sequence token, at a text of `stop`, or when its place for keys and values is full.
    Gives back what it holds when it ends, is closed, leaves a `with` block or is no longer referred to. One
    thread reads it.
    """

    def __init__(
        self,
        policy: AnyPolicy,
        past: KV,
        tail: KV,
        last_hidden: Tensor,
        sampling: Sampling,
        rng: np.random.Generator,
        stop: Sequence[str],
        on_close: Sequence[Callable[[], None]],
    ) -> None:
        self._on_close = list(on_close)
        self._eos = policy.tokenizer.eos
        self._written = TextStream(policy.tokenizer, stop)
        self._steps = decode(
            policy.model,
            past,
            last_hidden[None],
            tail.k.shape[3],
            rng=rng,
            room=tail,
            sampling=sampling,
        )

    @property
    def tokens(self) -> list[int]:
        """Ids generated so far, without the one that ends the text."""
        return self._written.tokens

    def __next__(self) -> str:
        while self._on_close and not self._written.ended:
            token = self._next_token()
            if token is None or token == self._eos:
                break
            piece = self._written.push(token)
            if piece:
                return piece
        rest = self._written.finish() if self._on_close else ""
        self.close()
        if rest:
            return rest
        raise StopIteration

    def close(self) -> None:
        """Stop writing and give back the prefix and the place for keys and values."""
        while self._on_close:
            self._on_close.pop()()

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @torch.inference_mode()
    def _next_token(self) -> int | None:
        step = next(self._steps, None)
        return None if step is None else int(step.tokens)
