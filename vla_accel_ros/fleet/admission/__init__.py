"""How many robots fit: the verdict on one (`verdict`), what is expected before it is tried (`forecast`), and
what is found later (`punctuality`)."""
