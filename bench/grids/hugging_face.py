"""The baseline: transformers' LlamaForCausalLM with our weights, a frame as prefill and K - 1 cached decodes.

Eager, it is the baseline of ActionFlow's figures; recorded whole into one CUDA graph, the best that is
possible without changing a module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vla_accel_ros.models.openvla.model import OpenVLA


class HuggingFace:
    """A frame's K greedy tokens by transformers. The model's weights are shared, not copied."""

    def __init__(self, model: OpenVLA) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = model.config.prefix
        config = LlamaConfig(
            vocab_size=model.config.vocab,
            hidden_size=sizes.width,
            intermediate_size=sizes.mlp,
            num_hidden_layers=sizes.depth,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            rms_norm_eps=sizes.norm_eps,
            max_position_embeddings=2048,
            attn_implementation="sdpa",
        )
        ours = dict(model.language_model.named_parameters())
        with torch.device("meta"):
            self._model: Any = LlamaForCausalLM(config)
        rotary = type(self._model.model.rotary_emb)(config)
        self._model.model.rotary_emb = rotary.to(model.device)
        for name, module in self._model.named_modules():
            for key in [key for key, value in module._parameters.items() if value is not None]:
                module._parameters[key] = ours[f"{name}.{key}"]
        self._model.eval()

    @torch.inference_mode()
    def frame(self, embeddings: Tensor, tokens: int) -> Tensor:
        """embeddings [1, L, W] -> ids int64 [K], on the device."""
        output = self._model(inputs_embeds=embeddings, use_cache=True, logits_to_keep=1)
        ids = [output.logits[:, -1:].argmax(dim=-1)]
        for _ in range(tokens - 1):
            output = self._model(
                input_ids=ids[-1], past_key_values=output.past_key_values, use_cache=True, logits_to_keep=1
            )
            ids.append(output.logits[:, -1:].argmax(dim=-1))
        return torch.cat(ids, dim=1)[0]
