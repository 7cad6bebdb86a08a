"""The grids of OxyGen and ActionFlow, and staggered chunks: what bench/pipeline.py measures."""
