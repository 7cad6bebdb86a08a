<<<<<<< HEAD
"""Computes micro-batches. interface: what the scheduler asks; runner: the model runner of an engine.
frames: frames become prefixes; captured_prefill: the same by captured stages. text: answers in text;
=======
"""Computes micro-batches. runner: the model runner of an engine. frames: frames become prefixes;
plain_prefill: by a policy's plain functions; captured_prefill: by captured stages. text: answers in text;
>>>>>>> 58aefb7f (A family declares its micro-requests: what each reads, leaves, and for how long that is kept)
answers: their tokens, together."""
