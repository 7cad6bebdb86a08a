"""Hands the arm to a person and back, and follows the person's commands.

takeover: who commands the arm, and how it gets to where the person wants it; commands: what the
person's device says of joints, checked; hand: the same of the hand's velocity.
"""
