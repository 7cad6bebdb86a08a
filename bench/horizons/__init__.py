"""What bench/horizon.py measures: signals against errors, and episodes under execution horizons."""
