"""Pages of what continues prefixes, allocated once.

What continues a prefix (a tail) has a length that is not known when it begins, and a long one must not take
its space from short ones: so it is a list of pages. Pages that it may come to need are promised to it when it
begins, so that an answer that was admitted can always be finished; the promise is a number, the page itself
is taken when it is written. A page belongs to one tail, and a tail is read where it lies.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

import torch

from vla_accel_ros.engine.kv.pool import PoolExhausted, check_memory
from vla_accel_ros.models.config import GemmaConfig
from vla_accel_ros.models.layers.packed import Span


class PagePool:
    """`pages` pages of `page_tokens` tokens each. Safe to use as a KVPool is.

    k, v: [pages, layers, kv_heads, page_tokens, head_dim].
    Raises ValueError if the pool does not fit into the device's free memory.
    """

    def __init__(
        self, config: GemmaConfig, pages: int, page_tokens: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        if pages < 1 or page_tokens < 1:
            raise ValueError(
                f"pages is {pages} and page_tokens {page_tokens}; a pool needs at least 1 of each."
            )
        shape = (pages, config.depth, config.kv_heads, page_tokens, config.head_dim)
        check_memory(shape, device, dtype)
        self.page_tokens = page_tokens
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)
        self._free = list(range(pages))
        self._promised = 0
        self._lock = threading.RLock()

    @property
    def pages(self) -> int:
        """How many there are."""
        return self.k.shape[0]

    @property
    def unpromised(self) -> int:
        """Pages that are neither written nor promised."""
        with self._lock:
            return len(self._free) - self._promised

    def needed(self, tokens: int) -> int:
        """Pages for a tail of that many tokens."""
        return math.ceil(tokens / self.page_tokens)

    def begin(self, max_tokens: int) -> Tail:
        """An empty tail that may grow to max_tokens. Raises PoolExhausted if that many pages are not left."""
        promised = self.needed(max_tokens)
        with self._lock:
            left = len(self._free) - self._promised
            if promised > left:
                raise PoolExhausted(
                    f"a tail of {max_tokens} tokens needs {promised} KV pages but {max(left, 0)} of "
                    f"{self.pages} are left; end answers earlier or give the engine more pages."
                )
            self._promised += promised
        return Tail(self, max_tokens, promised)

    def span(self, page: int, start: int, end: int) -> Span:
        """Tokens start to end of a page."""
        return Span(self.k, self.v, page, start, end)

    def _take(self) -> int:
        with self._lock:
            self._promised -= 1
            return self._free.pop(0)

    def _give(self, pages: list[int], promised: int) -> None:
        with self._lock:
            self._free += pages
            self._promised -= promised


@dataclass
class Tail:
    """A request's own tokens. length: written so far; at most max_tokens. Made by PagePool.begin."""

    pool: PagePool = field(repr=False)
    max_tokens: int
    _promised: int
    length: int = 0
    pages: list[int] = field(default_factory=list)
    closed: bool = False

    @property
    def parts(self) -> tuple[Span, ...]:
        """What is written, in order."""
        size = self.pool.page_tokens
        ends = [min(size, self.length - first) for first in range(0, self.length, size)]
        return tuple(self.pool.span(page, 0, end) for page, end in zip(self.pages, ends, strict=False))

    def grow(self) -> Span:
        """The place of the next token, which is part of it from now on.

        Raises ValueError for a tail that is full or closed.
        """
        if self.closed or self.length == self.max_tokens:
            why = "is closed" if self.closed else f"is full with {self.max_tokens} tokens"
            raise ValueError(f"the tail {why} and cannot grow")
        page, place = divmod(self.length, self.pool.page_tokens)
        if page == len(self.pages):
            self.pages.append(self.pool._take())
            self._promised -= 1
        self.length += 1
        return self.pool.span(self.pages[page], place, place + 1)

    def cut(self, length: int) -> None:
        """Keep the first tokens alone; the places of the others are for those that come next."""
        self.length = min(self.length, length)

    def close(self) -> None:
        """Give everything back. Doing so twice is harmless."""
        if not self.closed:
            self.closed = True
            self.pool._give(self.pages, self._promised)
            self.pages, self._promised, self.length = [], 0, 0
