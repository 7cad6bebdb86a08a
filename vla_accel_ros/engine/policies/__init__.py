"""Former names, for scheduling rules of other packages. policy: of the interface in engine.rules.rule."""
