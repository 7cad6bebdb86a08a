"""`vla contract`: write a robot's contract from what is known, and check one without ROS."""
