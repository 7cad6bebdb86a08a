"""Sends motion to controllers: one adapter for each kind of controller, all behind one interface.

adapter: the interface; joint_trajectory, forward_command, servo: the kinds; locked: an adapter for two
threads; outputs: all controllers of a robot together.
"""
