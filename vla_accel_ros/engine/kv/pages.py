"""Pages for the keys and values that continue prefixes, allocated once.

A continuation (a tail) begins with an unknown length, and a long one must not take the space of short ones,
so it is a list of pages. When it begins, all pages that it may need are promised to it, so that an admitted
answer can always be finished. The promise is only a number; a page is taken when it is written. A page
belongs to one tail, and is read in place.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

import torch

from vla_accel_ros.engine.kv.pool import check_memory
from vla_accel_ros.engine.kv.prefixes import PoolExhausted
from vla_accel_ros.models.config import GemmaConfig
from vla_accel_ros.models.layers.packed import Span


class PagePool:
    """`pages` pages of `page_tokens` tokens each. As safe for several threads as a KVPool.

    k, v: [pages, layers, kv_heads, page_tokens, head_dim].
    Raises ValueError if pages or page_tokens is below 1, or if the pool does not fit into the device's free
    memory.
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
        """Number of pages."""
        return self.k.shape[0]

    @property
    def unpromised(self) -> int:
        """Number of pages that are neither written nor promised."""
        with self._lock:
            return len(self._free) - self._promised

    def needed(self, tokens: int) -> int:
        """Number of pages for a tail of that many tokens."""
        return math.ceil(tokens / self.page_tokens)

    def begin(self, max_tokens: int) -> Tail:
        """Returns an empty tail that may grow to max_tokens. Raises PoolExhausted if too few pages are
        left."""
        promised = self.needed(max_tokens)
        with self._lock:
            available = len(self._free) - self._promised
            if promised > available:
                raise PoolExhausted(
                    f"a tail of {max_tokens} tokens needs {promised} KV pages but {max(available, 0)} of "
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
    """The tokens that continue a request's prefix. length: tokens written so far, at most max_tokens.
    PagePool.begin makes it."""

    pool: PagePool = field(repr=False)
    max_tokens: int
    _promised: int
    length: int = 0
    pages: list[int] = field(default_factory=list)
    closed: bool = False

    @property
    def parts(self) -> tuple[Span, ...]:
        """The written tokens, in order."""
        size = self.pool.page_tokens
        ends = [min(size, self.length - first) for first in range(0, self.length, size)]
        return tuple(self.pool.span(page, 0, end) for page, end in zip(self.pages, ends, strict=False))

    def grow(self) -> Span:
        """Append one token; returns its place, to write it.

        Raises ValueError if the tail is full or closed.
        """
        if self.closed or self.length == self.max_tokens:
            state = "is closed" if self.closed else f"is full with {self.max_tokens} tokens"
            raise ValueError(f"the tail {state} and cannot grow")
        page, offset = divmod(self.length, self.pool.page_tokens)
        if page == len(self.pages):
            self.pages.append(self.pool._take())
            self._promised -= 1
        self.length += 1
        return self.pool.span(self.pages[page], offset, offset + 1)

    def cut(self, length: int) -> None:
        """Keep only the first `length` tokens; later tokens reuse the places of the others."""
        self.length = min(self.length, length)

    def close(self) -> None:
        """Free all pages and promises. Closing twice is harmless."""
        if not self.closed:
            self.closed = True
            self.pool._give(self.pages, self._promised)
            self.pages, self._promised, self.length = [], 0, 0
