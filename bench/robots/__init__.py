"""Stand-ins of robots' drivers: names, types, QoS and rates that those publish, and controllers that move."""
