#!/usr/bin/env bash
# Run a command in the workspace.
source "/opt/ros/$ROS_DISTRO/setup.bash"
source /ws/install/setup.bash
exec "$@"
