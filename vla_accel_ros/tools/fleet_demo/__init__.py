"""`vla fleet-demo`: simulated robots share one scheduler, and some processes are killed while they work.

command is the subcommand. plan holds the user's options and each robot's tasks. fleet starts the processes
and restarts those that end. robot plays the tasks of one robot. faults kills processes and measures how long
the arms need to move again. pace sets the speed of simulated time. run is the whole demo, and summary its
figures.
"""
