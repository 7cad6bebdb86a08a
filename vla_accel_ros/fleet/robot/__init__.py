"""A robot's side of a fleet: what it asks for and when (`client`), what it executes meanwhile (`execution`),
and what it shows (`observing`)."""
