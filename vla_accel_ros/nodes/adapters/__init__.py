"""What moves joints: one adapter per kind of controller, all behind one interface."""
