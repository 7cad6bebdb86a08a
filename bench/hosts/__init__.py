"""Hosts of a network on one machine. host: namespaces with an address, their own shared memory and programs.
router: passes their packets on, as links of a given delay, loss and rate would. robot: the program of a
robot's host."""
