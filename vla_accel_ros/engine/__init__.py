"""When it runs: one scheduler over one queue of requests.

engine: the front door; config: its options; request: what somebody wants, and what one launch computes;
scheduler: schedule, run, postprocess; readiness: which requests may run; policies/: what runs next; profile:
what it is expected to take; lanes: where it runs; lane_streams, partitions: on which streams and
multiprocessors; partitioned: what is made of the option for them, from split_times; micro_batch_times: when
it ran; runner: computes
micro-batches by prefill, flow_actor, token_actor and text (whose batches are answers); robots: whom it
serves; preprocess: pixels of observations; guidance: what a chunk continues; streaming, loop: a running stack
at its own rates; session: what an engine was, for replay; kv/: keys and values;
stages/: captured micro-requests.
"""
