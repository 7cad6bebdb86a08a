"""The plain model through torch.compile, each case in its own process with a time limit.

Compiled are the three modules of a chunk, encode, prefix and velocity, with ten calls of the last: unrolling
a whole chunk means three times as many operations to compile and is not faster, because no kernel spans two
steps. They run in one CUDA graph. The figures to compare with are measured in the same process: our stages
and the plain model, each in graphs, too.

    PYTHONPATH=bench python -m full_size.compiled KIND VIEWS PROMPT RUNS

prints lines of JSON, to be joined: `beside` by variant, `compile_s` by module, median and p99 in
milliseconds, and `error`, against float32.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from full_size.processes import environment_of_bench

if TYPE_CHECKING:
    from torch import Tensor

    from vla_accel_ros.models.pi.model import Pi
    from vla_accel_ros.tools.bench.subjects import Inputs

MODULES = ("encode", "prefix", "velocity")


class Case(NamedTuple):
    """kind: of the model; views; tokens of the prompt; replays that are measured."""

    kind: str
    views: int
    prompt: int
    runs: int


def measure_all(
    cases: Sequence[Case], gpus: Sequence[str], budget_s: float
) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Yields each case's figures as soon as they exist; runs one case at a time on each GPU.

    gpus: in the form of CUDA_VISIBLE_DEVICES.
    """
    free: SimpleQueue[str] = SimpleQueue()
    for gpu in gpus:
        free.put(gpu)

    def one(case: Case) -> dict[str, Any]:
        gpu = free.get()
        try:
            return measure(case, budget_s, gpu)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(max_workers=len(gpus)) as pool:
        begun = {pool.submit(one, case): case for case in cases}
        for done in as_completed(begun):
            yield begun[done], done.result()


def measure(case: Case, budget_s: float, gpu: str | None = None) -> dict[str, Any]:
    """The figures of a case's process; `none`: why there are no times. gpu: of CUDA_VISIBLE_DEVICES, None =
    any."""
    command = [sys.executable, "-m", "full_size.compiled", *map(str, case)]
    visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    with (
        # A cache of its own: nothing that another case has compiled.
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache,
        tempfile.TemporaryFile("w+") as said,
        tempfile.TemporaryFile("w+") as errors,
    ):
        environment = {**environment_of_bench(), **visible, "TORCHINDUCTOR_CACHE_DIR": cache}
        process = subprocess.Popen(
            command, stdout=said, stderr=errors, env=environment, start_new_session=True
        )
        try:
            status: int | None = process.wait(budget_s)
        except subprocess.TimeoutExpired:
            status = None
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # those that compile for it, too
            process.wait()
        said.seek(0)
        errors.seek(0)
        last = (errors.read().strip().splitlines() or ["it failed without a word"])[-1]
        figures = joined(said.read())
    if status is None and "p50_ms" not in figures:
        figures["none"] = f"not compiled within {budget_s:.0f} s"
    elif status:
        figures["none"] = last
    return figures


def joined(said: str) -> dict[str, Any]:
    """All lines of a process as one dictionary; dictionaries under the same name are merged."""
    figures: dict[str, Any] = {}
    for line in said.splitlines():
        if not line.startswith("{") or not line.endswith("}"):
            continue  # cut off, or somebody else's
        for name, value in json.loads(line).items():
            figures[name] = {**figures.get(name, {}), **value} if isinstance(value, dict) else value
    return figures


def compile_parts(
    model: Pi, inputs: Inputs, say: Callable[[dict[str, Any]], None], backend: str = "inductor"
) -> Callable[[], Tensor]:
    """Images to actions by compiled modules; says what compiling each has taken, in seconds."""
    import torch

    from vla_accel_ros.tools.bench.subjects import plain

    for name in MODULES:
        whole = torch.compile(getattr(model, name), fullgraph=True, dynamic=False, backend=backend)
        setattr(model, name, _timed(name, whole, say))
    run = plain(model, inputs)
    run()
    return run


def _timed(
    name: str, module: Callable[..., Any], say: Callable[[dict[str, Any]], None]
) -> Callable[..., Any]:
    """The module; its first call is waited for and told."""
    import torch

    first = True

    def call(*given: Any) -> Any:
        nonlocal first
        if not first:
            return module(*given)
        first, begin = False, time.perf_counter()
        made = module(*given)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        say({"compile_s": {name: round(time.perf_counter() - begin, 1)}})
        return made

    return call


def main(case: Case) -> None:
    """Measure what the compiled model is compared with, compile, measure, print."""
    import torch

    from full_size.figures import summary
    from full_size.gpu import alone, gpu_id
    from vla_accel_ros.models.config import PI0, PI05
    from vla_accel_ros.tools.bench.subjects import Ours, plain, random_inputs, random_model, relative
    from vla_accel_ros.tools.tune.pieces import Body, times_ms

    def say(found: dict[str, Any]) -> None:
        print(json.dumps(found), flush=True)

    device, config = torch.device("cuda"), PI0 if case.kind == "pi0" else PI05
    with alone(gpu_id(device)), torch.inference_mode():
        inputs = random_inputs(config, case.views, case.prompt, device)
        model = random_model(config, device)
        exact = plain(model, inputs)().clone()
        model.set_precision(torch.bfloat16)
        graph = Body(plain(model, inputs), device)
        say({"beside": {"plain graph": summary(times_ms(graph.run, case.runs))}})
        del graph
        ours = Ours(model, inputs)
        say({"beside": {"ours": summary(times_ms(ours.parts()["total"], case.runs))}})
        del ours
        run = compile_parts(model, inputs, say)
        error = relative(run(), exact)
        graph = Body(run, device)
        say({**summary(times_ms(graph.run, case.runs)), "error": error})


if __name__ == "__main__":
    main(Case(sys.argv[1], *map(int, sys.argv[2:])))
