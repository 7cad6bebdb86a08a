"""Stages of precision w8a8: near the exact ones, and exact where a calibration says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from builders import make_config, make_model, make_observation, make_policy
from calibrations import calibration
from openvla_builders import make_openvla_folder
from stage_runs import Run, apart
from torch import Tensor

from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.denoise.denoise import Denoise, Form
from vla_accel_ros.engine.stages.denoise.int8 import DenoiseInt8
from vla_accel_ros.engine.stages.dropping import drop
from vla_accel_ros.engine.stages.int8 import Int8
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.kernels.ops import Ops
from vla_accel_ros.models.calibration import Calibration, products
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.flow.rtc import Inpainting
from vla_accel_ros.models.layers.gemma import KV
from vla_accel_ros.models.layers.packed import Segment
from vla_accel_ros.models.layers.quantized import W8A8, Quantized

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MOST = 0.04


@pytest.mark.parametrize("smoothed", [False, True])
def test_every_stage_is_near_but_not_the_same(kind: str, smoothed: bool) -> None:
    model = make_model(make_config(kind), varied=False)
    ours, exact = Run(model, W8A8, Int8(calibration(model) if smoothed else None)), Run(model)
    for made in ("tokens", "hidden", "actions"):
        assert 0 < apart(getattr(ours, made), getattr(exact, made)) < MOST, made
    assert 0 < apart(ours.kv.k, exact.kv.k) < MOST
    assert 0 < apart(ours.kv.v, exact.kv.v) < MOST


def test_rows_are_of_all_products_of_denoising_or_of_none(kind: str) -> None:
    model = make_model(make_config(kind), varied=False)
    made = calibration(model)
    whole, before = (Run(model, W8A8, Int8(made, denoise)) for denoise in (True, False))
    layers = whole.stages.int8.expert(model, ())
    assert {weight.dtype for layer in layers for weight in vars(layer).values()} == {torch.int8}
    assert torch.equal(whole.kv.k, before.kv.k) and type(before.stages.denoise(1, 4)) is Denoise
    assert 0 < apart(whole.actions, before.actions) < MOST


def test_products_that_lose_too_much_stay_exact(kind: str) -> None:
    model = make_model(make_config(kind), varied=False)
    exact = Run(model)
    everything = Int8(calibration(model, dict.fromkeys(("vision", "prefix", "expert"), 1.0)))
    ours = Run(model, W8A8, everything)
    for made in ("tokens", "hidden", "actions"):
        torch.testing.assert_close(getattr(ours, made), getattr(exact, made), rtol=1e-4, atol=5e-5)
    assert everything.nbytes == 0 and len(everything.said.split(", ")) == len(products(model)) + 2
    expert = Run(model, W8A8, Int8(calibration(model, {"vision": 1.0, "prefix": float("nan")})))
    torch.testing.assert_close(expert.kv.k, exact.kv.k, rtol=1e-4, atol=5e-5)
    assert 0 < apart(expert.actions, exact.actions) < MOST


def test_one_product_of_a_layer_may_be_exact(kind: str) -> None:
    model = make_model(make_config(kind), varied=False)
    exact = Run(model)
    for left in ("qkv", "o", "gate_up", "down", "fc1", "fc2"):
        made = calibration(model)
        errors = {name: float(name.endswith(f".{left}")) for name in made.errors}
        ours = Int8(Calibration(made.model, 1, made.largest, errors))
        assert 0 < apart(Run(model, W8A8, ours).actions, exact.actions) < MOST
        layer = ours.vision(model)[0] if left.startswith("fc") else ours.expert(model, ())[0]
        assert isinstance(getattr(layer, left), Tensor) and isinstance(layer.o, Tensor) == (left == "o")


@pytest.mark.parametrize("form", [Form.GUIDED, Form.COMMITTED])
def test_chunks_that_agree_with_others_are_near(kind: str, form: Form) -> None:
    model = make_model(make_config(kind), varied=False)
    target = torch.randn(8, 8, generator=torch.Generator().manual_seed(9))
    weights = torch.linspace(1, 0, 8)
    guide = Inpainting(target, weights, committed=2 if form is Form.COMMITTED else 0)
    ours, exact = Run(model, W8A8, Int8(calibration(model)), guide), Run(model, guide=guide)
    assert 0 < apart(ours.actions, exact.actions) < MOST
    assert torch.equal(ours.actions[:, :2], target[None, :2]) == (form is Form.COMMITTED)


@torch.inference_mode()
def test_packed_forwards_have_such_rows_and_a_row_does_not_depend_on_company() -> None:
    model, g = make_model(make_config("pi05"), varied=False), torch.Generator().manual_seed(5)
    sizes = model.config.prefix
    int8 = Int8(calibration(model))
    ours = PackedForward(model.language_model, sizes, 64, int8=int8)
    exact = PackedForward(model.language_model, sizes, 64)
    past = KV(*(torch.randn(sizes.depth, 1, sizes.kv_heads, 9, sizes.head_dim, generator=g) for _ in "kv"))
    words = [Segment(torch.randn(1, 1, sizes.width, generator=g), (past,)) for _ in range(3)]
    prompt = Segment(torch.randn(1, 33, sizes.width, generator=g), causal=True)
    for segments in (words, [prompt]):
        found, wanted = (torch.cat([part[0] for part in run(segments)]) for run in (ours, exact))
        assert 0 < apart(found.clone(), wanted) < MOST
    together = [part.clone() for part in ours([prompt, *words])]
    torch.testing.assert_close(together[2], ours([words[1]])[0], rtol=1e-5, atol=1e-6)
    assert ours.copied_bytes == 0 < int8.nbytes


def test_an_engine_acts_and_answers_with_one_copy_of_the_prefix_stack() -> None:
    policy = make_policy("pi0")
    engines = [Engine(policy, fast=True, precision=precision) for precision in ("exact", "w8a8")]
    chunks, texts = [], []
    for engine in engines:
        with engine.observe(make_observation()) as prefix:
            chunks.append(torch.from_numpy(engine.act(prefix).actions))
            texts.append(list(engine.ask(prefix, max_tokens=4)))
    assert 0 < apart(chunks[1], chunks[0]) < 0.04
    assert all(texts)
    held = sum(
        group[0].in_features * sum(one.out_features for one in group)
        for group in products(policy.model).values()
    )
    assert held < engines[1].runner.copied_bytes < 1.3 * held  # and scales


@pytest.mark.parametrize("mode", ["sequential", "pipelined", "speculative"])
def test_openvla_has_it_in_every_mode(tmp_path: Path, mode: str) -> None:
    policy = load_policy(make_openvla_folder(tmp_path))
    engine = Engine(policy, fast=True, precision="w8a8", token_mode=mode)
    forward = engine.runner.packed_forward
    assert forward is not None and engine.runner.copied_bytes > 0
    assert all(isinstance(layer.down, Quantized) for layer in forward.stack.layers)


def test_int4_weights_may_go_with_int8_rows(kind: str) -> None:
    policy = make_policy(kind)
    engines = {name: Engine(policy, fast=True, precision=name) for name in ("w8a8", "w8a8-int4", "int4")}
    made, held = {}, {}
    for name, engine in engines.items():
        with engine.observe(make_observation()) as prefix:
            view = engine.runner.pool.view(prefix.slot, prefix.n_tokens)
            made[name] = view.k.clone(), torch.from_numpy(engine.act(prefix).actions)
            assert list(engine.ask(prefix, max_tokens=4))
        held[name] = engine.runner.copied_bytes
    assert torch.equal(made["w8a8-int4"][0], made["w8a8"][0])
    assert not torch.equal(made["w8a8-int4"][0], made["int4"][0])
    assert 0 < apart(made["w8a8-int4"][1], made["int4"][1]) < 0.05
    assert held["int4"] < held["w8a8-int4"]


def test_the_log_says_whether_it_is_calibrated() -> None:
    assert "columns are not smoothed: a file of `vla calibrate`" in Int8().said
    model = make_model(make_config("pi05"))
    assert "as calibrated on 1 observations, all products are in 8 bits" in Int8(calibration(model)).said
    said = Int8(calibration(model, {"expert": 0.5})).said
    assert "8 of 24 products, above 0.05 of error, stay exact: expert.0.qkv, expert.0.o" in said


@pytest.mark.parametrize("fast_memory", [False, True])
def test_denoising_is_in_8_bits_only_where_memory_is_slow(
    monkeypatch: pytest.MonkeyPatch, fast_memory: bool
) -> None:
    monkeypatch.setattr("vla_accel_ros.engine.stages.int8.feeds_fast", lambda device: fast_memory)
    stages = Engine(make_policy("pi05"), fast=True, precision=W8A8).runner.stages
    assert isinstance(stages, Stages) and isinstance(stages.denoise(1, 4), DenoiseInt8) == (not fast_memory)


@pytest.mark.gpu
@torch.inference_mode()
def test_captured_stages_are_those_of_the_references_repeat_and_allocate_nothing(kind: str) -> None:
    """Denoising, too."""
    config = make_config(kind)
    model = make_model(config, varied=False).to(CUDA)
    made, g = calibration(model), torch.Generator(CUDA).manual_seed(1)
    images = torch.randint(256, (2, 28, 28, 3), generator=g, device=CUDA).byte().cpu().numpy()
    prompt = torch.randint(4, config.vocab, (7,), generator=g, device=CUDA)
    noise = torch.randn(1, config.horizon, config.action_dim, generator=g, device=CUDA)
    state = torch.randn(1, config.state_dim, generator=g, device=CUDA)
    found: dict[str, tuple[Tensor, ...]] = {}
    for name, ops in (("kernels", None), ("references", Ops)):
        pool = KVPool(config.prefix, 2, config.max_tokens, CUDA, torch.float32)
        stages = Stages(model, pool, precision=W8A8, int8=Int8(made, denoise=True), ops=ops)
        if ops is not None:
            stages.record = lambda stage, partition: None  # type: ignore[method-assign]  # computed anew
        for _ in range(2):  # the second time from the captured graphs
            (length,) = stages.observe([images], [prompt], [1])
            now = pool.view(1, length).k.clone(), stages.act(noise, state, [1], [length], 3).actions
            before = found.setdefault(name, now)
            assert all(torch.equal(a, b) for a, b in zip(now, before, strict=True))
        if ops is None:
            torch.cuda.synchronize()
            allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
            for stage in (stages.encode(2), stages.prefill(2, 7), stages.denoise(1, 3)):
                assert stage.captured
                stage.run()
            torch.cuda.synchronize()
            assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
    for ours, expected in zip(found["kernels"], found["references"], strict=True):
        assert apart(ours, expected) < 0.01


@pytest.mark.gpu
@torch.inference_mode()
def test_stages_whose_exact_weights_are_given_up_are_those_of_the_references(kind: str) -> None:
    """The end of a prefix, which text begins with, is in 8 bits then, too."""
    config = make_config(kind)
    model = make_model(config, varied=False).to(CUDA)
    int8 = Int8(calibration(model), denoise=True)
    drop(model, W8A8, CUDA, int8)
    assert model.language_model.layers[-1].mlp.down_proj.weight.is_meta
    images = torch.randint(256, (2, 28, 28, 3), generator=torch.Generator().manual_seed(1)).byte().numpy()
    prompt, found = torch.arange(4, 11), dict[str, tuple[Tensor, ...]]()
    noise, state = torch.ones(1, config.horizon, config.action_dim), torch.ones(1, config.state_dim)
    for name, ops in (("kernels", None), ("references", Ops)):
        pool = KVPool(config.prefix, 2, config.max_tokens, CUDA, torch.float32)
        stages = Stages(model, pool, precision=W8A8, int8=int8, ops=ops)
        if ops is not None:
            stages.record = lambda stage, partition: None  # type: ignore[method-assign]  # computed anew
        for _ in range(2):
            (length,) = stages.observe([images], [prompt], [1])
            acted = stages.act(noise.to(CUDA), state.to(CUDA), [1], [length], 3).actions
            found[name] = pool.view(1, length).k.clone(), acted, stages.last_hidden(1, length)
    for ours, expected in zip(found["kernels"], found["references"], strict=True):
        assert apart(ours, expected) < 0.01


def test_streamed_weights_and_int8_copies_exclude_each_other() -> None:
    model = make_model(make_config("pi05"))
    pool = KVPool(model.config.prefix, 2, model.config.max_tokens, CPU, torch.float32)
    with pytest.raises(ValueError, match=r"offload .*w8a8"):
        Stages(model, pool, precision="w8a8", offload=0.5)
