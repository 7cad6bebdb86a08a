"""A plan against measurements.

recorded: existing figures, of bench/results and published ones. page, tuned: the rows as docs/lab/plan.md and
a device file have them.
"""
