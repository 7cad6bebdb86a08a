"""The simulated robot of the demo and the tests: scene, tasks, expert, controller and demonstrations."""
