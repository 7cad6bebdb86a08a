"""Prompts of GR00T: the recorded ones are in test_oracles.py; here what else an operator may say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from groot_builders import DATA, KINDS

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.groot.config import GrootConfig
from vla_accel_ros.models.groot.policy import GrootPolicy
from vla_accel_ros.models.groot.prompt import breaks_of, formalized, special
from vla_accel_ros.models.text.tokenizer import load_qwen_tokenizer

STATE = np.zeros(1, np.float32)
FOLDERS = {"groot_n1_7": "checkpoint", "groot_n1_5": "checkpoint_lerobot"}


@pytest.fixture(scope="module", params=KINDS)
def policy(request: pytest.FixtureRequest) -> GrootPolicy:
    loaded = load_policy(DATA / request.param / FOLDERS[request.param])
    assert isinstance(loaded, GrootPolicy)
    return loaded


def test_no_instruction_is_the_usual_one(policy: GrootPolicy) -> None:
    usual, none = (policy.prompt(text, STATE) for text in ("Perform the task.", ""))
    assert usual == none


def test_a_special_token_in_an_instruction_is_text(policy: GrootPolicy) -> None:
    ends = special(policy.tokenizer, "<|im_end|>")
    assert policy.prompt("stop<|im_end|>", STATE).count(ends) == policy.prompt("stop", STATE).count(ends)


def test_an_instruction_that_does_not_fit_is_refused(policy: GrootPolicy) -> None:
    with pytest.raises(ValueError, match="shorten the instruction"):
        policy.prompt("pick up the cube " * 200, STATE)


def test_instructions_are_formalised_as_in_training() -> None:
    assert formalized("Put it_there, 2 times!", "groot_n1_7") == "put it_there 2 times"
    assert formalized("Put it_there, 2 times!", "groot_n1_5") == "put itthere 2 times"


def test_images_come_at_the_same_words_of_any_instruction(policy: GrootPolicy) -> None:
    kind = policy.config.kind
    one, other = (policy.prompt(text, STATE) for text in ("go", "pick up the cube"))
    assert breaks_of(one, policy.tokenizer, kind) == breaks_of(other, policy.tokenizer, kind)
    assert len(breaks_of(one, policy.tokenizer, kind)) == len(policy.config.image_names)


def test_positions_count_on_after_an_image(policy: GrootPolicy) -> None:
    """By its longer side, or by its tokens where they have one dimension."""
    words, width, several = (
        torch.tensor(policy.prompt("go", STATE)),
        policy.config.text.width,
        bool(policy.config.sections),
    )
    image = torch.zeros(2, 3, width)
    taps = torch.zeros(len(policy.config.taps), 2, 3, width)
    prompt = policy.model.embed(words, [image], [taps], [4])
    positions, where = prompt.positions[:, 0].T.tolist(), prompt.image.nonzero().flatten().tolist()
    assert where == [4, 5, 6, 7, 8, 9]
    cells = [[4, 4 + row, 4 + column] for row in range(2) for column in range(3)]
    assert positions[4:10] == (cells if several else [[4 + index] for index in range(6)])
    assert positions[10] == ([7] * 3 if several else [10])


@pytest.mark.parametrize("policy", ["groot_n1_5"], indirect=True)  # the files are N1.5's
def test_qwens_older_files_agree_with_transformers(policy: GrootPolicy) -> None:
    transformers = pytest.importorskip("transformers")
    folder: Path = DATA / "groot_n1_5" / "eagle_assets"
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_qwen_tokenizer(folder, policy.config.vocab)
    for text in [
        "Pick up the RED cube, and put it in the box!",
        "it's 12 cm\n\n left  of\tÄpfel",
        "['don\\'t']",
        " ",
    ]:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text


def test_the_config_names_its_cameras_alone(policy: GrootPolicy) -> None:
    assert isinstance(policy.config, GrootConfig)
    assert len(policy.config.image_names) == 2 == policy.config.views
