"""Computes micro-batches. interface: what the scheduler asks; runner: the model runner of an engine.
frames: frames become prefixes; plain_prefill: by a policy's plain functions; captured_prefill: by captured
stages. text: answers in text; answers: their tokens, together."""
