"""`vla export`: bags as a LeRobot dataset."""
