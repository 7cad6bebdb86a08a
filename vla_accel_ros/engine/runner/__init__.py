"""Computes micro-batches. interface: what the scheduler asks; runner: the model runner of an engine.
frames: frames become prefixes; captured_prefill: the same by captured stages. text: answers in text;
answers: their tokens, together."""
