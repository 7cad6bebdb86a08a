"""`vla fleet-sim`: a fleet in simulated time. command: its options, and what it prints and writes."""
