"""Measures durations of captured stages, alone and beside each other.

In the first run on an H200, encode and prefill took 12 % longer under load than after a moment of idleness; a
power limit would explain that. So the GPU computes for a while before anything is timed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from agents.captured import Captured, Stage
from agents.durations import BESIDE_BATCH, Durations
from agents.rules import SHARED, Beside

ENCODES, PREFILLS, STEPS = 4, 8, 20
"""Runs of each stage."""
WARM_S = 4.0
"""Runs of encode before anything is timed."""
_MORE = 1.7
"""Decode steps are queued for this many times encode's time alone; for more if they end earlier."""


def measure(captured: Captured) -> Durations:
    """Times of every stage, by GPU events. On a CPU nothing runs side by side, so the times alone stand for
    both."""
    device, batches = captured.model.device, captured.batches
    encode, prefill, _, _ = captured.runs(SHARED, batches[0])
    if device.type == "cuda":
        _warm(encode)
    encode_s, prefill_s = _alone_s(encode, ENCODES, device), _alone_s(prefill, PREFILLS, device)
    decode_s = {batch: _alone_s(captured.runs(SHARED, batch)[2], STEPS, device) for batch in batches}
    chunk_s = {batch: _alone_s(captured.runs(SHARED, batch)[3], STEPS, device) for batch in batches}
    chunk_s[0] = _alone_s(captured.chunk_alone, STEPS, device)
    batch = max(one for one in batches if one <= BESIDE_BATCH)
    if device.type != "cuda":
        same = Beside(encode_s, decode_s[batch], prefill_s, decode_s[batch])
        return Durations(encode_s, prefill_s, decode_s, chunk_s, {SHARED: same}, sms=1)
    streams = torch.cuda.Stream(device), torch.cuda.Stream(device)
    beside = {}
    for mode in captured.modes:
        encode, prefill, decode, _ = captured.runs(mode, batch)
        in_encode = _beside_s(encode, ENCODES, encode_s, decode, decode_s[batch], streams)
        in_prefill = _beside_s(prefill, PREFILLS, prefill_s, decode, decode_s[batch], streams)
        beside[mode] = Beside(*in_encode, *in_prefill)
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return Durations(encode_s, prefill_s, decode_s, chunk_s, beside, sms)


def _warm(run: Stage) -> None:
    until_s = time.monotonic() + WARM_S
    while time.monotonic() < until_s:
        run()
        torch.cuda.synchronize()


def _alone_s(run: Stage, count: int, device: torch.device) -> float:
    """Return the mean seconds of a run, over `count` runs after a warm-up."""
    if device.type != "cuda":
        with torch.inference_mode():
            run()
            begin_s = time.perf_counter()
            run()
            return time.perf_counter() - begin_s
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    begin.record()
    for _ in range(count):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / count


def _beside_s(
    front: Stage,
    count: int,
    front_s: float,
    decode: Stage,
    decode_s: float,
    streams: Sequence[torch.cuda.Stream],
) -> tuple[float, float]:
    """Return the seconds of a run of `front` beside continuous decode steps, and of a step meanwhile."""
    more = _MORE
    while True:
        steps = 2 + round(more * count * front_s / decode_s)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(steps)]
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[1]):
            decode()
            ends[0].record()
        with torch.cuda.stream(streams[0]):
            begin.record()
            for _ in range(count):
                front()
            end.record()
        with torch.cuda.stream(streams[1]):
            for event in ends[1:]:
                decode()
                event.record()
        torch.cuda.synchronize()
        took_s = begin.elapsed_time(end) / 1e3
        ended_s = [ends[0].elapsed_time(event) / 1e3 for event in ends]
        late_s = begin.elapsed_time(ends[0]) / 1e3
        if late_s + ended_s[-1] < took_s:
            more *= 2
            continue
        during = [one for one in ended_s if late_s + one <= took_s] or ended_s[:1]
        return took_s / count, during[-1] / (len(during) - 1) if len(during) > 1 else ended_s[1]
