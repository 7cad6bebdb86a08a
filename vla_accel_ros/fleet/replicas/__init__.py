"""What computes a fleet's chunks. replica: what a scheduler asks of one; local: an engine of this process,
the only one that imports torch."""
