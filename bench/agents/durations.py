"""Times of an agent's stages, alone and beside each other: the basis of the simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.rules import SCREENS_FIRST, SHARED, Beside, best_splits
from vla_accel_ros.engine.config import Split
from vla_accel_ros.engine.request import DECODE, ENCODE, PREFILL, MicroBatch

BESIDE_BATCH = 4
"""Open answers in the decode steps that are measured beside encode and prefill."""


@dataclass(frozen=True)
class Durations:
    """Seconds of stages. decode_s: by number of open answers. chunk_s: a chunk of a prompt, by number of
    answers beside it. beside: by number of multiprocessors for decoding, with BESIDE_BATCH answers; SHARED:
    two streams share the GPU; SCREENS_FIRST: the same, but screens have priority. sms: of the GPU."""

    encode_s: float
    prefill_s: float
    decode_s: Mapping[int, float]
    chunk_s: Mapping[int, float]
    beside: Mapping[int, Beside]
    sms: int = 132

    def takes_s(self, batch: MicroBatch, other: MicroBatch | None) -> float:
        """Return the seconds that a micro-batch takes beside another one, or alone."""
        rows = len(batch.requests)
        if batch.stage == PREFILL and batch.steps:
            return _at(self.chunk_s, rows - 1)
        both = self._both(batch, other)
        if batch.stage == DECODE:
            alone_s = _at(self.decode_s, rows)
            if both is None:
                return alone_s
            in_prefill = other is not None and other.stage == PREFILL
            longer_s = both.decode_in_prefill_s if in_prefill else both.decode_in_encode_s
            return alone_s * longer_s / _at(self.decode_s, BESIDE_BATCH)
        if batch.stage == ENCODE:
            return self.encode_s if both is None else both.encode_s
        return self.prefill_s if both is None else both.prefill_s

    def _both(self, batch: MicroBatch, other: MicroBatch | None) -> Beside | None:
        """Measured times beside other work. In a split, a time also applies if nothing runs beside it."""
        mode = self.mode(batch.split)
        if mode in self.splits:
            return self.beside[mode]
        return None if other is None else self.beside[mode if mode in self.beside else SHARED]

    def mode(self, split: Split | None) -> int:
        """Return the key of `beside` for a micro-batch."""
        return mode_of(split, self.splits)

    @property
    def splits(self) -> tuple[int, ...]:
        """Multiprocessors that decoding may have of a GPU that is divided."""
        return tuple(sorted(split for split in self.beside if split > 0))

    def front_s(self) -> float:
        """Seconds of encode and prefill alone; the highest possible request rate is its inverse."""
        return self.encode_s + self.prefill_s

    def whole_s(self, tokens: float) -> float:
        """Seconds of a whole request alone; prefill produces its first token."""
        return self.front_s() + (tokens - 1) * self.decode_s[min(self.decode_s)]

    def best(self, tokens: float) -> dict[str, int]:
        """Best split by Nova's equation 3 for each stage beside decoding; empty if the GPU is not
        partitioned."""
        if not self.splits:
            return {}
        measured = {split: self.beside[split] for split in self.splits}
        return dict(zip((ENCODE, PREFILL), best_splits(measured, tokens), strict=True))

    def document(self) -> dict[str, Any]:
        """Return the durations as JSON, in ms."""
        return {
            "sms": self.sms,
            "encode_ms": _ms(self.encode_s),
            "prefill_ms": _ms(self.prefill_s),
            "decode_ms": {str(batch): _ms(seconds) for batch, seconds in self.decode_s.items()},
            "chunk_ms": {str(batch): _ms(seconds) for batch, seconds in self.chunk_s.items()},
            "beside": [
                {"split": split, **{name[:-1] + "ms": _ms(value) for name, value in vars(both).items()}}
                for split, both in self.beside.items()
            ],
        }


def read(document: Mapping[str, Any]) -> Durations:
    """Read what `document` wrote. Raises ValueError with one sentence for anything else."""
    try:
        beside = {
            int(row["split"]): Beside(
                **{name: row[name[:-1] + "ms"] / 1e3 for name in Beside.__dataclass_fields__}
            )
            for row in document["beside"]
        }
        decode_s, chunk_s = (
            {int(batch): ms / 1e3 for batch, ms in document[name].items()}
            for name in ("decode_ms", "chunk_ms")
        )
        encode_s, prefill_s = document["encode_ms"] / 1e3, document["prefill_ms"] / 1e3
        return Durations(encode_s, prefill_s, decode_s, chunk_s, beside, int(document["sms"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"durations are not as bench/corun.py writes them: {error!r}; measure.") from error


def mode_of(split: Split | None, splits: tuple[int, ...]) -> int:
    """Return SHARED, SCREENS_FIRST, or the nearest of `splits`."""
    if split is None:
        return SHARED
    return nearest(split.actions, splits) if split.actions else SCREENS_FIRST


def nearest(split: int, there: tuple[int, ...]) -> int:
    """Return the largest value that is not larger, else the smallest one. Raises ValueError if there are
    none."""
    if not there:
        raise ValueError(f"a split of {split} multiprocessors was asked for, but the GPU is not divided.")
    return max((one for one in there if one <= split), default=there[0])


def _at(known: Mapping[int, float], batch: int) -> float:
    """Return the time of the smallest captured batch that holds this many, else of the largest batch."""
    return known[min((size for size in known if size >= batch), default=max(known))]


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 4)
