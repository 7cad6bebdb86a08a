"""The scheduler of a fleet (`scheduler`) and its options (`settings`): who is served (`members`) and why
(`judging`), what is known of each (`records`, `rhythms`), who waits (`queue`), which request goes to which
replica (`dispatch`, `hedging`), what becomes of it (`completion`), and who answers `questions`."""
