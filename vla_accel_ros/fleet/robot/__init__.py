"""A robot's side of a fleet: what it asks for and when (`client`), what it executes meanwhile (`execution`),
what it shows (`observing`), its `questions`, and what chunks were made from, for who records them
(`provenance`)."""
