"""From chunks to motion: trajectories, the buffer that joins chunks, limits and the watchdog. Numpy only."""
