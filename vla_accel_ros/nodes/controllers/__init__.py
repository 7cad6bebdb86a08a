"""What controllers say of themselves. parameters: as they are configured; state: as they execute."""
