"""Former names of the scheduling rules' interface, for rules of other packages: see engine.rules.rule."""
