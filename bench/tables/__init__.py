"""The tables of README.md and docs/, made of the files of bench/results."""
