"""Compares the contract's rates with a plan for this GPU, in one line, before the first frame arrives.

The device file is chosen by the GPU's name. Without one, or on a CPU, the line says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diagnostic_msgs.msg import DiagnosticStatus

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.nodes.diagnostics import OK, WARN, status
from vla_accel_ros.planning.device import load, named_like
from vla_accel_ros.planning.families.work import Work
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.verdict import Verdict, Wanted, judge

NOTHING = "no plan: only captured stages on a GPU have one"
PROMPT = 64
"""Number of prompt tokens in the plan, if the model takes as many."""


def planned(engine: Engine, contract: Contract, rates_hz: Mapping[str, float]) -> Planned:
    """The comparison for an engine; rates_hz: of vision and action. There is no plan for plain torch."""
    device, config = engine.policy.device, engine.config
    known = device.type == "cuda" and config.fast
    gpu = torch.cuda.get_device_name(device) if known else ""
    sizes, seats = engine.policy.config, config.staggered
    held = {"keep_exact": config.keep_exact, "text": engine.runner.text is not None}
    return Planned(sizes, gpu, contract, rates_hz, config.steps, config.precision, seats, **held)


class Planned:
    """verdict: None if there is no plan; `line` then says why. gpu: its name, "" if the engine has no
    captured stages on a GPU. seats: of staggered chunks. keep_exact, text: see planning.memory."""

    def __init__(
        self,
        sizes: Any,
        gpu: str,
        contract: Contract,
        rates_hz: Mapping[str, float],
        steps: int = 10,
        precision: str = "exact",
        seats: int = 0,
        keep_exact: bool = True,
        text: bool = False,
    ) -> None:
        self.verdict: Verdict | None = None
        name = named_like(gpu)
        if name is None:
            self.line = f"no plan: there is no device file of {gpu}" if gpu else NOTHING
            return
        try:
            prompt = min(PROMPT, sizes.max_prompt)
            cameras = len(contract.cameras)
            work = Work(cameras, prompt, max(steps, 1), precision=precision)
            plan = make_plan(sizes, load(name), work, seats=seats, keep_exact=keep_exact, text=text)
        except ValueError as error:
            self.line = f"no plan: {error}"
            return
        wanted = Wanted(rates_hz["vision"], rates_hz["action"], max_age_s=contract.chunk.max_age_s)
        self.verdict = judge(plan, wanted)
        self.line = self.verdict.line

    @property
    def late(self) -> bool:
        """Whether the predicted times miss the rates."""
        return self.verdict is not None and bool(self.verdict.late)

    def status(self) -> DiagnosticStatus:
        """The line for /diagnostics."""
        load_share = "" if self.verdict is None else f"{self.verdict.load:.2f}"
        return status("plan", WARN if self.late else OK, self.line, {"load": load_share})
