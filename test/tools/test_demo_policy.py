"""The recipe of the bundled policy: what the loss may see, what the tokens are, what the figures mean."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from training import data, samples, vocabulary
from training.objective import Batch, Objective
from training.recipe import QUICK, policy_config
from training.train import export, learning_rate
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.nodes.running.environment import demo_model
from vla_accel_ros.sim.tasks import FAMILIES, tasks
from vla_accel_ros.tools import cli
from vla_accel_ros.tools.demo.measure import wilson
from vla_accel_ros.tools.demo_policy import command
from vla_accel_ros.tools.demo_policy.evaluate import Plan, one_thread_each, summary
from vla_accel_ros.tools.demo_policy.rollout import Episode, told

JOINTS = 6
DELTA = np.array([True, True, True, True, True, False])


def every_answer() -> list[str]:
    colours = {task.block for task in tasks()}
    return [
        "done",
        *(f"{verb} the {c} block" for verb in ("moving to", "holding", "following") for c in colours),
    ]


def make_model() -> Pi:
    torch.manual_seed(0)
    return Pi(policy_config(vocabulary.build().get_vocab_size(), JOINTS))


def make_batch(rows: int = 3, prompt: int = 12, answer: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, 60, (rows, prompt), generator=generator)
    tokens[0, -4:] = vocabulary.PAD
    answers = torch.randint(4, 60, (rows, answer), generator=generator)
    answers[1, -2:] = vocabulary.PAD
    return Batch(
        images=torch.rand(rows, 2, 3, 112, 112, generator=generator) * 2 - 1,
        tokens=tokens,
        token_mask=tokens != vocabulary.PAD,
        answer=answers,
        answer_mask=answers != vocabulary.PAD,
        actions=torch.randn(rows, 32, JOINTS, generator=generator),
        uv=torch.rand(rows, 2, 2, generator=generator),
        uv_mask=torch.ones(rows, 2, dtype=torch.bool),
    )


def terms(objective: Objective, batch: Batch) -> dict[str, float]:
    with torch.no_grad():
        _, found = objective(batch, torch.Generator().manual_seed(2))
    return {name: value.item() for name, value in found.items()}


@pytest.mark.parametrize("text", [*(task.instruction for task in tasks()), *sorted(every_answer())])
def test_every_sentence_of_the_demo_has_its_words_and_comes_back(text: str) -> None:
    tokenizer = vocabulary.build()
    encoded = tokenizer.encode(text)
    assert vocabulary.UNK not in encoded.ids
    assert tokenizer.decode(encoded.ids) == text
    assert len(encoded.ids) < samples.MAX_ANSWER or text.startswith("put")


def test_training_prompts_are_the_policys_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    state = rng.uniform(-1, 1, (20, JOINTS)).astype(np.float32)
    part = {"state": state, "chunk": rng.normal(size=(20, 32, JOINTS)).astype(np.float32)}
    statistics = samples.Statistics.of(part, DELTA)
    model = make_model()
    export(tmp_path, dict(model.state_dict()), model.config, statistics, QUICK, DELTA)
    policy = load_policy(tmp_path, delta_mask=DELTA)
    instructions = np.array([tasks()[i % len(tasks())].instruction for i in range(20)])
    normal, _ = statistics.normalizers()
    for row, instruction, observed in zip(
        samples._prompts(instructions, normal.normalize(state)), instructions, state
    ):
        assert [token for token in row if token != vocabulary.PAD] == policy.prompt(
            str(instruction), observed
        )


def test_deltas_are_undone_by_the_policy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    part = {
        "state": rng.uniform(-1, 1, (50, JOINTS)).astype(np.float32),
        "chunk": rng.normal(size=(50, 32, JOINTS)).astype(np.float32),
    }
    statistics = samples.Statistics.of(part, DELTA)
    model = make_model()
    export(tmp_path, dict(model.state_dict()), model.config, statistics, QUICK, DELTA)
    policy = load_policy(tmp_path)
    assert policy.delta_mask.tolist() == DELTA.tolist()
    _, actions = statistics.normalizers()
    raw = torch.from_numpy(actions.normalize(samples.relative(part, DELTA))[7])
    np.testing.assert_allclose(policy.actions(raw, part["state"][7]), part["chunk"][7], atol=1e-5)


def differing(folder: Path, expected: dict[str, torch.Tensor]) -> list[str]:
    """Return the parameters of a folder loaded in bfloat16 that are not the expected ones."""
    loaded = load_policy(folder, dtype=torch.bfloat16).model.state_dict()
    return [name for name, value in loaded.items() if not torch.equal(value.float(), expected[name].float())]


def test_an_exported_policy_is_rounded_as_a_load_in_bfloat16_rounds_its_weights(tmp_path: Path) -> None:
    rng, model = np.random.default_rng(0), make_model()
    part = {"state": rng.normal(size=(20, JOINTS)), "chunk": rng.normal(size=(20, 32, JOINTS))}
    statistics = samples.Statistics.of(part, DELTA)
    export(tmp_path, dict(model.state_dict()), model.config, statistics, QUICK, DELTA)
    exported = load_policy(tmp_path).model.state_dict()
    assert differing(tmp_path, exported) == []
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    save_file(weights, tmp_path / "model.safetensors")
    assert differing(tmp_path, exported) == []


def test_the_bundled_policy_is_the_same_network_in_float32_and_bfloat16() -> None:
    assert differing(demo_model(), load_policy(demo_model()).model.state_dict()) == []


def test_the_answer_is_hidden_from_the_actions_and_the_localisation() -> None:
    objective, batch = Objective(make_model()), make_batch()
    other = replace(batch, answer=batch.answer.flip(0), answer_mask=batch.answer_mask.flip(0))
    before, after = terms(objective, batch), terms(objective, other)
    assert after["flow"] == pytest.approx(before["flow"], abs=1e-6)
    assert after["place"] == pytest.approx(before["place"], abs=1e-6)
    assert after["text"] != pytest.approx(before["text"], abs=1e-3)


def test_padding_changes_nothing() -> None:
    objective, batch = Objective(make_model()), make_batch()
    wider = torch.nn.functional.pad(batch.tokens, (0, 3), value=vocabulary.PAD)
    longer = torch.nn.functional.pad(batch.answer, (0, 2), value=vocabulary.PAD)
    padded = replace(
        batch,
        tokens=wider,
        token_mask=wider != vocabulary.PAD,
        answer=longer,
        answer_mask=longer != vocabulary.PAD,
    )
    before, after = terms(objective, batch), terms(objective, padded)
    assert after == pytest.approx(before, abs=1e-5)


def test_a_shard_has_the_same_samples_in_every_process(tmp_path: Path) -> None:
    """What a spawned worker records is what this process records: images, labels and words, byte for byte."""
    here = data.ShardJob(tmp_path / "here.npz", (5, 6), 112, tuple(DELTA), None, every=14)
    there = replace(here, path=tmp_path / "there.npz")
    with ProcessPoolExecutor(1, get_context("spawn"), one_thread_each) as pool:
        future = pool.submit(data.make_shard, there)
        data.make_shard(here)
        future.result()
    with np.load(here.path) as ours, np.load(there.path) as theirs:
        assert set(ours.files) == set(theirs.files)
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours.files)
        assert ours["front"].shape[1:] == (3, 112, 112) and len(ours["state"]) > 4


def test_a_few_steps_on_one_batch_lower_every_loss() -> None:
    objective, batch = Objective(make_model()), make_batch()
    optimiser = torch.optim.AdamW(objective.parameters(), lr=1e-3)
    first = terms(objective, batch)
    for _ in range(12):
        loss, _ = objective(batch, torch.Generator().manual_seed(2))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    last = terms(objective, batch)
    assert all(last[name] < first[name] for name in ("flow", "text", "place"))


def test_learning_rate_warms_up_and_decays() -> None:
    recipe = replace(QUICK, warmup=10, steps=100)
    rates = [learning_rate(step, 100, recipe) for step in range(100)]
    assert np.argmax(rates) in (9, 10)
    assert rates[0] < rates[5] < rates[9]
    assert rates[-1] < 0.03 * recipe.learning_rate


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shuffled_instruction_asks_for_another_block(family: str) -> None:
    for seed, task in enumerate(tasks(family) * 5):
        lie = told(task, seed, "shuffled")
        assert task.block not in lie
        assert lie in {other.instruction for other in tasks(family)}


def test_wilson_interval_against_known_values() -> None:
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-3)
    assert wilson(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-3)


def test_summary_counts_by_family_and_condition() -> None:
    def episode(seed: int, condition: str, success: bool) -> Episode:
        figures = {"time_s": 1.0 + seed, "jerk": 50.0, "tracking": 0.01, "seam": 0.0}
        return Episode(
            "reach the red block",
            "reach",
            seed,
            condition,
            success,
            answers_right=2,
            answers_asked=4,
            **figures,
        )

    table = summary([episode(0, "normal", True), episode(1, "normal", False), episode(0, "blank", False)])
    assert table["reach"]["normal"]["success"] == 0.5
    assert table["reach"]["normal"]["median_time_s"] == 1.0
    assert table["reach"]["blank"]["median_time_s"] is None
    assert table["answers"] == {"n": 8, "correct": 0.5, "interval_95": wilson(4, 8)}


def test_a_plan_with_an_unknown_condition_is_refused() -> None:
    with pytest.raises(ValueError, match=r"conditions has \['dark'\]; use some of normal"):
        Plan(Path("policy"), Path("contract"), conditions=("dark",))


def test_training_without_its_sources_says_where_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "SOURCES", tmp_path)
    assert cli.main(["train-demo", "--quick", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path) in error and "pip install -e ." in error
    assert not (tmp_path / "out").exists()


def test_the_recipe_runs_from_end_to_end_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train-demo", "--quick", "--device", "cpu", "--processes", "1", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    assert (tmp_path / "loss.png").stat().st_size > 5_000
    weights = (tmp_path / "policy" / "model.safetensors").read_bytes()
    assert cli.main(words) == 0, "a finished run is finished again at once"
    assert (tmp_path / "policy" / "model.safetensors").read_bytes() == weights
    out = tmp_path / "eval.json"
    flags = ["--episodes", "1", "--families", "reach", "--conditions", "normal,still", "--processes", "1"]
    assert cli.main(["eval", "--model", str(tmp_path / "policy"), "--json", str(out), *flags]) == 0
    document = json.loads(out.read_text())
    assert document["summary"]["reach"]["still"]["success"] == 0.0
    assert {"machine", "versions", "date", "plan", "episodes"} <= set(document)
    assert "| reach | normal | 1 |" in capsys.readouterr().out
