"""Plans against existing figures, of bench/results and published ones; see bench/plan.py."""
