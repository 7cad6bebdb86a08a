"""The T5 encoder against transformers' own: T5 and UMT5, with and without a gate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from closeness import assert_near

from vla_accel_ros.models.text.t5 import T5Encoder, infer_t5

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("gate", ["relu", "gated-gelu"])
@pytest.mark.parametrize("kind", ["T5", "UMT5"])
def test_features_are_those_of_transformers_with_its_padding(kind: str, gate: str, device: str) -> None:
    """On a GPU the weights stay on the host."""
    torch.manual_seed(0)
    config: Any = getattr(transformers, f"{kind}Config")(
        vocab_size=50,
        d_model=24,
        d_kv=8,
        d_ff=40,
        num_layers=3,
        num_heads=2,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        feed_forward_proj=gate,
    )
    theirs = getattr(transformers, f"{kind}EncoderModel")(config).eval()
    for name, parameter in theirs.named_parameters():
        if "norm" in name or "bias" in name:
            parameter.data.normal_(1.0)
    tensors = {name: value for name, value in theirs.state_dict().items() if "embed_tokens" not in name}
    data = {"feed_forward_proj": gate, "relative_attention_max_distance": 12}
    ours = T5Encoder(infer_t5({name: tuple(value.shape) for name, value in tensors.items()}, data))
    ours.load_state_dict(tensors)
    ids = torch.randint(2, 50, (30,))
    padded, mask = (
        torch.cat((part, torch.zeros(9, dtype=torch.int64))) for part in (ids, torch.ones_like(ids))
    )
    with torch.no_grad():
        recorded = theirs(padded[None], attention_mask=mask[None]).last_hidden_state[0, :30]
        features = ours(ids.to(device))
    assert features.device.type == device
    assert_near(features.cpu(), recorded)
