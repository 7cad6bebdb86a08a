"""Solvers of the flow on the bundled policy: errors, drafts, and success in closed loop."""
