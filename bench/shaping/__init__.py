"""Parts of bench/block_shapes.py: cases (the launches), measure (times of all their block shapes), report
(tables)."""
