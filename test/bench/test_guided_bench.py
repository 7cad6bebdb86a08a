"""bench/guided.py with tiny models on a CPU: a row for each way, and that each chunk is what its row says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import guided
import numpy as np
import pytest
import torch

from grids.sizes import config_of
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.tools.bench.policies import random_observation, random_policy
from vla_accel_ros.types import Agreement

pytestmark = pytest.mark.usefixtures("one_thread")


def make_policy() -> Policy:
    made = random_policy(config_of("pi0", True), torch.device("cpu"), torch.float32)
    return replace(made, trained_delay=guided.DELAY)


def test_every_way_is_compared_with_the_free_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--small", "--kinds", "pi0", "--runs", "20", "--plain", "2", "--out", str(tmp_path)]
    assert guided.main(given) == 0
    document = json.loads((tmp_path / "guided.json").read_text())
    assert {"machine", "versions", "date", "seeds", "steps", "runs", "dtype"} <= document.keys()
    cases = {case["path"]: case for case in document["cases"]}
    ways = {guided.FREE, guided.GUIDED, guided.COMMITTED}
    assert cases.keys() == {"act", "graph", "staggered step", "staggered, running", "plain torch"}
    for path, case in cases.items():
        assert case.keys() - {"kind", "path"} == ways | ({guided.EXACT} if path == "plain torch" else set())
        for way in case.keys() - {"kind", "path"}:
            assert case[way]["p99_ms"] >= case[way]["p50_ms"] > 0
            assert ("more_ms" in case[way]) == (way != guided.FREE)
    assert len(capsys.readouterr().out.splitlines()) == 17


def test_chunks_agree_with_the_one_before_as_they_say() -> None:
    policy = make_policy()
    engine = Engine(policy, fast=True, steps=guided.STEPS)
    with engine.observe(random_observation(policy, 1, 8)) as prefix:
        first = engine.act(prefix).actions
        agreed = guided.agreed(first)
        made = {name: engine.act(prefix, noise=7, agreement=one) for name, one in agreed.items()}
    rest = agreed[guided.GUIDED]
    assert rest is not None
    apart = {
        name: np.abs(chunk.actions[: guided.DELAY] - rest.actions[: guided.DELAY]).max()
        for name, chunk in made.items()
    }
    assert apart[guided.COMMITTED] == 0.0
    assert max(apart[guided.GUIDED], apart[guided.EXACT]) < 0.5 * apart[guided.FREE]


def test_each_step_of_ten_staggered_chunks_ends_one_of_the_asked_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a step that computes nothing would be timed."""
    policy = make_policy()
    methods = list[str]()
    step = guided._step

    def noted(engine: Engine, agreement: Agreement | None) -> None:
        before = engine.scheduler.requests
        step(engine, agreement)
        methods.extend(
            "" if request.agreement is None else request.agreement.method
            for request in before
            if request.finished
        )

    monkeypatch.setattr(guided, "_step", noted)
    guided.staggered(policy, random_observation(policy, 1, 8), 20)
    assert len(methods) >= 3 * 4 * guided.STEPS - guided.STEPS - 3
    assert set(methods[-guided.STEPS :]) == {"trained"}
    assert set(methods[2 * guided.STEPS : 4 * guided.STEPS - 3]) == {""}


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert guided.main([]) == 1
    assert "--small tries the command on a CPU" in capsys.readouterr().err
