"""On which multiprocessors of a GPU blocks run."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vla_accel_ros.engine.stages.stage import Stage

BLOCKS = 4096


@triton.jit
def _note(out, rounds):
    number = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    value = tl.program_id(0).to(tl.float32)
    for _ in range(rounds):  # long enough that the next block goes to another multiprocessor
        value = value * 1.0001 + 1.0
    tl.store(out + tl.program_id(0), tl.where(value < 0.0, -1, number))


class ProcessorIds(Stage):
    """ids int32 [BLOCKS]: where each block ran."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.ids = torch.full((BLOCKS,), -1, dtype=torch.int32, device=device)

    def body(self) -> None:
        _note[(BLOCKS,)](self.ids, 2000)

    def found(self, stream: torch.cuda.Stream | None = None) -> set[int]:
        """Of one run on a stream."""
        self.ids.fill_(-1)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            self.run()
            torch.cuda.current_stream().synchronize()  # the device's does not wait for streams of partitions
        return set(_distinct(self.ids))


def _distinct(ids: Tensor) -> list[int]:
    found = [int(number) for number in ids.unique().tolist()]
    assert min(found) >= 0, "every block has told"
    return found
