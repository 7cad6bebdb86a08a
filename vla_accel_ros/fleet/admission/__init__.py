"""How many robots fit: the verdict on one (`verdict`), what is expected before it is tried (`forecast`, on a
simulated engine: `replica_model`; in a thread beside: `background`), and what is found later
(`punctuality`)."""
