"""The bundled demo policy in closed loop (rollout, evaluate), and the command that trains it."""
