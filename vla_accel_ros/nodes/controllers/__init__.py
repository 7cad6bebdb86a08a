"""What controllers report. parameters: their configuration; state: their execution."""
