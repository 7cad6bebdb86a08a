"""Admission: how many robots a fleet can serve. verdict: the decision on one robot. forecast: a prediction
before the robot is admitted, on a simulated engine (replica_model), in a thread of its own (background).
punctuality: measured lateness of the admitted robots."""
