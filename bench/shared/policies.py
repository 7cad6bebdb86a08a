"""A random model as a policy that an engine runs, and the size of a tiny X-VLA.

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
from vla_accel_ros.models.xvla.config import BartConfig, DaViTConfig, XVLAConfig
from vla_accel_ros.models.xvla.model import XVLA
from vla_accel_ros.models.xvla.policy import XVLAPolicy
from vla_accel_ros.tools.bench.subjects import random_model, random_network, random_smolvla

JOINTS = 7
WORD = "word"


def random_policy(
    config: PiConfig | SmolVLAConfig | XVLAConfig, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> Policy:
    """Return a random policy with JOINTS joints."""
    if isinstance(config, XVLAConfig):
        return policy_of(random_network(lambda: XVLA(config), device, seed).to(dtype))
    if isinstance(config, SmolVLAConfig):
        return policy_of(random_smolvla(config, device, seed).set_precision(dtype))
    return policy_of(random_model(config, device, seed).set_precision(dtype))


def policy_of(model: Pi | SmolVLA | XVLA) -> Policy:
    """Return a policy around an existing model."""
    nothing, mask = Normalizer.identity(), np.zeros(JOINTS, np.bool_)
    if isinstance(model, SmolVLA):
        return SmolVLAPolicy(model, word_tokenizer(), nothing, nothing, mask)
    if isinstance(model, XVLA):
        return XVLAPolicy(model, word_tokenizer(), nothing, nothing, mask)
    return Policy(model, word_tokenizer(), nothing, nothing, mask)


def word_tokenizer() -> JsonTokenizer:
    """Return a tokenizer that splits at blanks and knows only WORD."""
    vocabulary = {token: index for index, token in enumerate(("<pad>", "<bos>", "<unk>", WORD))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tokenizer.json")
        tokenizer.save(str(file))
        return JsonTokenizer(file)


TINY_XVLA = XVLAConfig(
    DaViTConfig((16, 32, 48, 64), (1, 1, 2, 1), (2, 4, 6, 8), (2, 4, 6, 8), 3, 8, 10),
    BartConfig(64, 2, 128, 4, 400, 64),
    64, 48, 3, 192, 4, 6, 4, 16, 64, False, 20, 20, 10, 20, 3, ("base", "left", "right"), "ee6d",
)  # fmt: skip
