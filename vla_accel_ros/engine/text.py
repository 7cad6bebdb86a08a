"""An answer being written: the language head continues a prefix, token by token, as the reader asks.

The generated tokens' keys and values are kept apart from the prefix, because that one is shared with the
actions. What is yielded is text, not tokens: a piece is held back while it ends in the middle of a character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.models.gemma import KV
from vla_accel_ros.models.policy import Policy

INCOMPLETE = "\ufffd"


class Answer(Iterator[str]):
    """Pieces of text, whose concatenation is the answer. tokens: what was generated so far.

    Ends at the end-of-sequence token or when its place for keys and values is full. Gives back what it holds
    when it ends, is closed, leaves a `with` block or is no longer referred to. One thread reads it.
    """

    def __init__(
        self,
        policy: Policy,
        past: KV,
        tail: KV,
        last_hidden: Tensor,
        temperature: float,
        rng: np.random.Generator,
        on_close: Sequence[Callable[[], None]],
    ) -> None:
        self.tokens: list[int] = []
        self._policy, self._past, self._tail, self._rng = policy, past, tail, rng
        self._hidden = last_hidden
        self._temperature = temperature
        self._text = ""
        self._on_close = list(on_close)

    def __next__(self) -> str:
        while self._on_close and len(self.tokens) < self._tail.k.shape[3]:
            token = self._next_token()
            if token == self._policy.tokenizer.eos:
                break
            self.tokens.append(token)
            text = self._policy.tokenizer.decode(self.tokens)
            if text.endswith(INCOMPLETE) or text == self._text:
                continue
            return self._piece(text)
        rest = self._piece(self._policy.tokenizer.decode(self.tokens)) if self._on_close else ""
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

    def _piece(self, text: str) -> str:
        """What text has beyond what was already said."""
        said, self._text = len(self._text), text
        return text[said:]

    @torch.inference_mode()
    def _next_token(self) -> int:
        model, done = self._policy.model, len(self.tokens)
        if done:
            token = torch.tensor([[self.tokens[-1]]], device=self._policy.device)
            tail = None if done == 1 else _tokens(self._tail, 0, done - 1)
            hidden, _ = model.extend(
                model.embed_tokens(token), self._past, tail=tail, out=_tokens(self._tail, done - 1, done)
            )
            self._hidden = hidden[0, 0]
        logits = model.logits(self._hidden).float()
        if not self._temperature:
            return int(logits.argmax())
        # Adding Gumbel noise and taking the largest is a draw from the softmax.
        scores = logits.double().cpu().numpy() / self._temperature
        return int((scores + self._rng.gumbel(size=scores.shape)).argmax())


def _tokens(kv: KV, start: int, end: int) -> KV:
    return KV(kv.k[:, :, :, start:end], kv.v[:, :, :, start:end])
