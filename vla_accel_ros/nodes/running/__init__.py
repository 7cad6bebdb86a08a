"""A node's life. lifecycle: its states and services. process: the main function of every node. executor:
calls timers and subscriptions. shutdown: signals, and parents that end. environment: what is set before rclpy
starts. processes: our nodes on this machine. host: whether others keep it busy. brief_log: its log.
robot_launch: what the launch files of robots share."""
