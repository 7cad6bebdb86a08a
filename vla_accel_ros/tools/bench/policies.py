"""A random model as a policy that an engine runs, and observations for it.

Everything around the network is the product's own: the tokenizers library tokenises the words, the policy's
rule resizes images, states and actions are float64 on the host. Only the numbers are meaningless: nothing is
normalised, and no token ends a text.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import tokenizers
import torch

from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.conventions import Normalizer
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.models.smolvla.model import SmolVLA
from vla_accel_ros.models.smolvla.policy import SmolVLAPolicy
from vla_accel_ros.models.text.tokenizer import JsonTokenizer
from vla_accel_ros.tools.bench.subjects import random_model, random_smolvla

JOINTS = 7
WORD = "word"


def random_policy(
    config: PiConfig | SmolVLAConfig, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> Policy:
    """Return a random policy with JOINTS joints."""
    if isinstance(config, SmolVLAConfig):
        return policy_of(random_smolvla(config, device, seed).set_precision(dtype))
    return policy_of(random_model(config, device, seed).set_precision(dtype))


def policy_of(model: Pi | SmolVLA) -> Policy:
    """Return a policy around an existing model."""
    nothing, mask = Normalizer.identity(), np.zeros(JOINTS, np.bool_)
    if isinstance(model, SmolVLA):
        return SmolVLAPolicy(model, _tokenizer(), nothing, nothing, mask)
    return Policy(model, _tokenizer(), nothing, nothing, mask)


def _tokenizer() -> JsonTokenizer:
    """Return a tokenizer that splits at blanks and knows only WORD."""
    vocabulary = {token: index for index, token in enumerate(("<pad>", "<bos>", "<unk>", WORD))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tokenizer.json")
        tokenizer.save(str(file))
        return JsonTokenizer(file)
