"""Text from tokens as they come, in pieces that never have to be taken back.

A character may be several tokens, and until its last byte is there the text ends in a replacement character:
that much is held back, and so is what may be the beginning of a text that ends the answer. What was given out
is always the beginning of the text of all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from vla_accel_ros.models.text.tokenizer import Tokenizer

INCOMPLETE = "\ufffd"


class TextStream:
    """tokens: pushed so far. text: given out so far. ended: one of the `stop` texts has come; it is not given
    out, nor is anything after it.

    Raises ValueError for a stop that is empty, or texts that are none.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        if isinstance(stop, str) or not all(isinstance(text, str) for text in stop):
            raise ValueError(f"stop is {stop!r}; give a list of strings.")
        if not all(stop):
            raise ValueError("stop has an empty text, which ends every answer at once; leave it out.")
        self.tokens: list[int] = []
        self.text = ""
        self.ended = False
        self._tokenizer, self._stop = tokenizer, tuple(stop)

    def push(self, token: int) -> str:
        """What is certain now and was not before; often nothing."""
        self.tokens.append(token)
        whole = self._tokenizer.decode(self.tokens)
        ends = [at for stop in self._stop if (at := whole.find(stop)) >= 0]
        if ends:
            self.ended = True
            return self._give(whole[: min(ends)])
        whole = whole.rstrip(INCOMPLETE)
        return self._give(whole[: len(whole) - self._begun(whole)])

    def finish(self) -> str:
        """The rest, when no token comes any more: also a character that stayed in pieces."""
        return "" if self.ended else self._give(self._tokenizer.decode(self.tokens))

    def _begun(self, whole: str) -> int:
        """How many of the last characters may be the beginning of a stop."""
        starts = (stop[:length] for stop in self._stop for length in range(1, len(stop)))
        return max((len(start) for start in starts if whole.endswith(start)), default=0)

    def _give(self, text: str) -> str:
        if not text.startswith(self.text):  # a decoder that rewrites what it said: wait until it agrees
            return ""
        piece, self.text = text[len(self.text) :], text
        return piece
