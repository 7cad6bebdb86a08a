"""What people and tasks ask of the arm, from the call until the robot has done it.

operator: what services do; order: steps from call to answer; runs: goals of run_policy; homing, lending: a
move home, the robot in other hands; moves: motion from rest to rest.
"""
