"""From what a policy's rows mean to targets of joints, and hands within their limits. Pinocchio computes it.

rotations: the forms in which policies give rotations; arm: the joints between two links, forwards and
backwards; hand: what the numbers of a hand mean; rows: a chunk's rows as targets of joints; led: as
velocities of a hand that Servo leads; guard: limits of
hands on a trajectory; collisions: of a robot with itself.
"""
