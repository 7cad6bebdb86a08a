"""What /diagnostics says of the speed of a task."""

from __future__ import annotations

from home_robot import Robot

from vla_accel_ros.nodes.trajectory.reports import motion_line


def test_diagnostics_say_the_speed_and_its_task_where_there_is_one():
    for tasks, values in (("1; slow*=0.2", ["0.2 for 'slowly up'"]), ("1", [])):
        robot = Robot("joint_trajectory", tasks=tasks)
        robot.run(0.3)
        robot.node.motion.runs.begin("slowly up")
        line = motion_line(robot.robot, (), "", robot.now)
        assert [pair.value for pair in line.values if pair.key == "speed"] == values
