"""Random weights with outlier columns, in 8 bits; see bench/w8a8.py."""
