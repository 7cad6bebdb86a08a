"""A recording in bfloat16, made of a float32 one by our own padded pass: something that comparisons in half
precision can be tried on, where no reference is at hand to record one."""

from __future__ import annotations

from dataclasses import replace

import torch
from oracle import Oracle
from oracle_runs import Run, by_token


def half_recording(name: str) -> Oracle:
    """The inputs and weights of recording `name`, and all that follows from them computed in bfloat16."""
    oracle = Oracle.load(name, dtype="bfloat16")
    oracle = replace(oracle, arrays=dict(oracle.arrays), spec={**oracle.spec, "dtype": "bfloat16"})
    run, arrays = Run(oracle, "padded"), oracle.arrays
    valid = arrays["prefix_pad_mask"]
    for key, tokens in (("prefix_embs", run.embeddings()), ("prefix_out", run.hidden())):
        arrays[key] = _placed(tokens, valid)
    for which in ("k", "v"):
        arrays[f"prefix_{which}"] = by_token(_placed(run.keys_or_values(which), valid), back=True)
    arrays["x_t"], arrays["v_t"] = run.path()
    arrays["actions"], arrays["text_logits"] = run.actions("openpi"), run.scores()
    return oracle


def _placed(tokens: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """[tokens, ...] as [B, T, ...], float32, zero where nothing is valid."""
    out = torch.zeros((*valid.shape, *tokens.shape[1:]))
    out[valid] = tokens.float()
    return out
