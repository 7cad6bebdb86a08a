"""A host that others keep busy is told as that, with figures; a node that keeps it busy itself is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vla_accel_ros.nodes.running.host import Host


class Machine:
    """A folder /proc. used_s, own_s: processor seconds of all and of this process, after one second."""

    def __init__(
        self, proc: Path, used_s: float, own_s: float, waits: float | None, interrupted: int
    ) -> None:
        self.proc, self.now_s, self.cpu_s = proc, 0.0, 0.0
        (proc / "self" / "task" / "7").mkdir(parents=True)
        self._write(0.0, 0)
        if waits is not None:
            (proc / "pressure").mkdir()
            line = (
                f"some avg10={waits:.2f} avg60=0.00 avg300=0.00 total=1\nfull avg10=99.00 avg60=0 total=0\n"
            )
            (proc / "pressure" / "cpu").write_text(line)
        self.host = Host(proc, lambda: self.now_s, lambda: self.cpu_s)
        self.now_s, self.cpu_s = 1.0, own_s
        self._write(used_s, interrupted)

    def _write(self, used_s: float, interrupted: int) -> None:
        ticks = round(used_s * os.sysconf("SC_CLK_TCK"))
        (self.proc / "stat").write_text(f"cpu  {ticks} 0 0 12345 99 0 0 0 0 0\ncpu0 1 1 1\n")
        (self.proc / "self" / "task" / "7" / "status").write_text(
            f"Name:\tx\nvoluntary_ctxt_switches:\t99999\nnonvoluntary_ctxt_switches:\t{interrupted}\n"
        )


@pytest.mark.parametrize(
    ("used_s", "own_s", "waits", "interrupted", "figures"),
    [
        (2.0, 0.3, 80.0, 250, ("80 %", "250 times")),
        (2.0, 0.3, None, 250, ("250 times",)),
        (2.0, 0.3, 5.0, 250, ()),
        (2.0, 0.3, None, 10, ()),
        (2.0, 1.9, 80.0, 250, ()),
    ],
)
def test_what_keeps_a_model_from_the_processors_is_named(
    tmp_path, used_s, own_s, waits, interrupted, figures
):
    busy = Machine(tmp_path, used_s, own_s, waits, interrupted).host.busy
    assert bool(busy) == bool(figures) and all(figure in busy for figure in figures)
