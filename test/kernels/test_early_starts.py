"""Launches that start early read only what no launch under way writes: by what they declare, and by bits.

On a CPU the kernels are silent, and the stages' checks follow what is declared. On a GPU each stage computes
the same bits with and without early starts, also behind kernels that let the next ones begin and then take
their time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from builders import make_config, make_model
from drawing import DEVICE, Drawing
from norms import norm_of
from seated import flow_of
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.denoise.captured_seats import CapturedSeats
from vla_accel_ros.engine.stages.denoise.denoise import Form
from vla_accel_ros.engine.stages.denoise.seats import ChunkStart
from vla_accel_ros.engine.stages.denoise.wide import MOST_NARROW
from vla_accel_ros.engine.stages.precision import EXACT
from vla_accel_ros.engine.stages.stage import Stage
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.kernels.cuda import compiling, products, rotary_attention
from vla_accel_ros.kernels.early import EarlyReads, reads_early
from vla_accel_ros.kernels.gpu import Gpu
from vla_accel_ros.kernels.ops import WRITTEN, Hopper, Ops, TritonOps
from vla_accel_ros.kernels.shapes import Config, Shape
from vla_accel_ros.kernels.tuning import Table, load_table
from vla_accel_ros.models.config import PI0, PI05
from vla_accel_ros.models.flow.rtc import Inpainting
from vla_accel_ros.models.layers.quantized import FP8, INT8, W8A8
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.tools.bench.kernels import few_layers
from vla_accel_ros.tools.bench.subjects import random_model

KINDS = ("pi0", "pi05")
COMMON = Config(64, 64, 64, 1, 8, 4, "cuda")


class Watched(Ops):
    """The references, which tell which of their arguments changed in the first calls."""

    def __init__(self, changes: dict[str, list[set[str]]]) -> None:
        self.changes = changes
        for name in (name for name in vars(Ops) if not name.startswith("_") and name != "parts"):
            setattr(self, name, self._watched(name, getattr(Ops, name)))

    def _watched(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        signature, changes = inspect.signature(kernel), self.changes

        def run(*arguments: Any, **named: Any) -> Any:
            if len(changes.setdefault(name, [])) > 3:
                return kernel(*arguments, **named)
            parts = dict(tensors_of(signature.bind(*arguments, **named).arguments))
            before = {part: tensor.clone() for part, tensor in parts.items()}
            result = kernel(*arguments, **named)
            changes[name].append({part for part, tensor in parts.items() if not same(tensor, before[part])})
            return result

        return run


def tensors_of(values: dict[str, Any], of: str = "") -> Iterator[tuple[str, Tensor]]:
    """Each tensor with its name, such as norm.squares."""
    for name, value in values.items():
        if isinstance(value, Tensor):
            yield of + name, value
        elif hasattr(value, "_asdict"):
            yield from tensors_of(value._asdict(), f"{of}{name}.")


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("precision", [EXACT, W8A8])
def test_references_change_what_their_kernels_are_declared_to_write(precision: str) -> None:
    changes: dict[str, list[set[str]]] = {}
    for stage in stages_of("pi05", lambda: Watched(changes), precision):
        stage.body()
    assert len(changes) >= 10
    for kernel, found in changes.items():
        declared = tuple(WRITTEN.get(kernel, "out").split())
        assert all(name.startswith(declared) for name in set().union(*found)), kernel


def results_of(model: Pi, precision: str, ops: Callable[[], Ops]) -> list[Tensor]:
    """What all stages compute of some inputs: prefixes, hidden states, and chunks of all forms, alone, in
    batches and in seats."""
    config, device = model.config, DEVICE
    dtype, tokens = model.language_model.dtype, min(16, config.max_prompt)
    pool = KVPool(config.prefix, 4, config.max_tokens, device, dtype)
    stages, results = Stages(model, pool, ops=ops, precision=precision), []
    target, weights = torch.ones(config.horizon, config.action_dim), torch.linspace(1, 0, config.horizon)
    forms = (None, Inpainting(target, weights), Inpainting(target, 0 * weights, committed=2))
    seats = [CapturedSeats(stages, 2, 3, wide, ops()) for wide in (False, True)] if precision == EXACT else []
    for number in range(2):  # the buffers keep the first
        draw = torch.Generator().manual_seed(number)
        size = config.vision.image_size
        images = [torch.randint(256, (2, size, size, 3), generator=draw).byte().numpy() for _ in range(2)]
        prompt = torch.randint(4, config.vocab, (tokens - number % 2,), generator=draw)
        lengths = stages.observe(images, [prompt] * 2, [1, 2])
        results = [pool.view(1, lengths[0]).k.clone(), stages.last_hidden(2, lengths[1])]
        for batch in (1, MOST_NARROW // config.horizon + 1):
            noise = torch.randn(batch, config.horizon, config.action_dim, generator=draw).to(device)
            state = torch.randn(batch, config.state_dim, generator=draw).to(device)
            slots, sizes = ([1, 2] * batch)[:batch], (lengths * batch)[:batch]
            for form in forms:
                results.append(stages.act(noise, state, slots, sizes, 3, [form] * batch).actions)
        for rows in seats:
            for form in forms:
                own = state[:1] if config.kind == "pi0" else None
                for seat in range(2):
                    prefix = pool.span(seat + 1, 0, lengths[seat])
                    rows.take(seat, ChunkStart(noise[:1], own, prefix, form))
                for _ in range(3):
                    rows.step([0, 1])
                results += [flow_of(rows, seat).actions for seat in range(2)]
    return results


class Silent:
    """Stands for a kernel: its launches do nothing."""

    def __init__(self, *_: Any) -> None:
        """Takes what a kernel takes."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.launch

    def launch(self, *_: Any, **named: Any) -> None:
        """Does nothing."""


class EveryShape(Table):
    """A table with an entry of kernels/cuda for every shape."""

    def pick_hopper(self, shape: Shape) -> list[Config]:
        return [] if shape.kernel in ("embed_actions", "read_out") else [COMMON]


def always(*_: Any, config: Config) -> bool:
    return True


def tailed(*arguments: Any, config: Config) -> bool:
    """attention.cu needs keys of the chunk itself."""
    return len(arguments) > 6


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], TritonOps]:
    """Makes silent kernels that start early: of kernels/cuda wherever there is one, or of Triton."""
    from vla_accel_ros.kernels.triton import attention, flow, image, linear, norm, project
    from vla_accel_ros.kernels.triton import rotary_attention as rotary

    for module in (attention, flow, image, linear, norm, project, rotary):
        for name, value in vars(module).items():
            if name.startswith("_") and callable(getattr(value, "fn", None)):
                monkeypatch.setattr(module, name, Silent())
    monkeypatch.setattr(compiling, "Kernel", Silent)
    monkeypatch.setattr(compiling, "tensor_map", lambda tensor, box: compiling.TensorMap())
    monkeypatch.setattr(
        rotary_attention, "macros", lambda *_: {"HEADS": 1, "SPLIT": 1, "KEYS": 64, "STAGES": 2, "TALL": 8}
    )

    def ops(cuda: bool) -> TritonOps:
        made = TritonOps(torch.device("cpu"), (EveryShape if cuda else Table)(Gpu(4), pdl=True))
        for name, kernel in made.hopper.items():
            made.hopper[name] = Hopper(tailed if name == "attend" else always, kernel.launch)
        return made

    return ops


def stages_of(kind: str, ops: Callable[[], Ops], precision: str = EXACT) -> Iterator[Stage]:
    """Each stage, in each form."""
    model = make_model(make_config(kind))
    config = model.config
    pool = KVPool(config.prefix, 4, config.max_tokens, torch.device("cpu"), torch.float32)
    stages = Stages(model, pool, ops=ops, precision=precision)
    images = torch.zeros(2, config.vision.image_size, config.vision.image_size, 3, dtype=torch.uint8).numpy()
    with torch.inference_mode():
        encode = stages.encode(2)
        encode.upload.take([*images])
        yield from (encode, stages.prefill(2, 7), stages.finish())
        wide = MOST_NARROW // config.horizon + 1
        denoise = [stages.denoise(batch, 2) for batch in (1, 2, wide)]
        seats = [CapturedSeats(stages, 2, 2, many, ops()).stage for many in (False, True)]
        for stage in (*denoise, *seats):
            for form in Form:
                stage.use(form)
                yield stage


@pytest.mark.parametrize("cuda", [True, False], ids=["cuda", "triton"])
def test_stages_read_early_only_what_is_constant(
    kind: str, cuda: bool, silent: Callable[[bool], TritonOps]
) -> None:
    names = []
    for stage in stages_of(kind, lambda: silent(cuda)):
        stage.check()
        names.append(stage.name)
    assert len(names) == 18


def test_positions_that_the_stage_computes_are_refused(
    silent: Callable[[bool], TritonOps], monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = list(stages_of("pi0", lambda: silent(True)))[2]
    computed = property(lambda stage: stage.lengths - 1)
    monkeypatch.setattr(type(finish), "positions", computed, raising=False)
    with (
        torch.inference_mode(),
        pytest.raises(RuntimeError, match=r"Finish: rotary_qkv reads positions before aten\."),
    ):
        finish.check()


@triton.jit
def _delay(nanoseconds):
    """Let the next kernel begin, and take some time."""
    tl.extra.cuda.gdc_launch_dependents()
    begin = tl.extra.cuda.globaltimer()
    now = begin
    while now - begin < nanoseconds:
        now = tl.extra.cuda.globaltimer()


def delayed(table: Table, first: int, each: int = 3) -> TritonOps:
    """The kernels, of which every third waits for a delay, and those after it may begin meanwhile."""
    ops, numbers = TritonOps(DEVICE, table), count(first)

    def behind_delay(launch: Callable[..., Any]) -> Callable[..., Any]:
        def launched(*arguments: Any, **named: Any) -> Any:
            if not next(numbers) % each:
                _delay[(1,)](20_000, num_warps=1)
            return launch(*arguments, **named)

        return launched

    for name in (name for name in vars(Ops) if not name.startswith("_") and name != "parts"):
        setattr(ops, name, behind_delay(getattr(ops, name)))
    return ops


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [EXACT, FP8, INT8, W8A8])
@pytest.mark.parametrize("sizes", [PI0, PI05], ids=KINDS)
def test_stages_compute_the_same_bits_with_early_starts_and_without(sizes: Any, precision: str) -> None:
    model, table = random_model(few_layers(sizes), DEVICE, dtype=torch.bfloat16), load_table(DEVICE)
    assert table.pdl
    expected = results_of(model, precision, lambda: TritonOps(DEVICE, replace(table, pdl=False)))
    for first in range(3):
        results = results_of(model, precision, partial(delayed, table, first))
        assert len(results) == len(expected) >= 8
        for number, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
            assert same(ours, theirs), f"result {number}, delays from launch {first} on"


@pytest.mark.parametrize("computed", [False, True])
def test_only_a_launch_that_waits_for_them_may_read_results(computed: bool) -> None:
    @reads_early("scale")
    def launch(scale: torch.Tensor, *, computed: bool, pdl: bool) -> None:
        """Launches nothing."""

    with nullcontext() if computed else pytest.raises(RuntimeError, match="scale"), EarlyReads("a stage"):
        launch(torch.zeros(4) + 1.0, computed=computed, pdl=True)


@pytest.mark.gpu
def test_a_delay_shows_what_is_written_while_it_is_read_early() -> None:
    from vla_accel_ros.kernels.triton import norm

    draw, width = Drawing(), 256
    x, weight = draw(1, 1, 320, dtype=torch.bfloat16), draw(2 * width, 320, dtype=torch.bfloat16, spread=0.05)
    rows, bias = draw(4, width, dtype=torch.bfloat16), draw(width, dtype=torch.bfloat16)
    left, results = norm_of(x, None), []
    for pdl, computed in ((False, False), *((True, False), (True, True)) * 2):  # compiled at the first time
        scale, out = torch.zeros(1, 1, width, dtype=torch.bfloat16, device=DEVICE), torch.empty_like(rows)
        _delay[(1,)](2_000_000, num_warps=1)
        products.gated_up(x, weight, scale, left, config=replace(COMMON, block_n=32), pdl=pdl)
        norm.add_layer_norm(rows, None, None, scale.flatten(), bias, out, computed=computed, pdl=pdl)
        results.append(out)
    assert same(results[3], bias.expand_as(rows)), "its scale was read before it was written"
    assert not same(results[3], results[0]) and same(results[4], results[0])
