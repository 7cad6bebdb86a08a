"""What benches share: timing on a device, models and their sizes, statistics, a stream at its rates."""
