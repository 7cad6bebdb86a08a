"""Tasks one after another: python examples/run_task.py "put the cup away" "wipe the table" """

from __future__ import annotations

import argparse

from vla_accel_ros import Robot


def main(arguments: list[str] | None = None) -> int:
    """Run the tasks; stop at the first that does not end well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--namespace", default="")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each task")
    options = parser.parse_args(arguments)
    with Robot(options.namespace) as robot:
        for task in options.tasks:
            outcome = robot.run(task, options.seconds)
            print(f"{task}: {outcome.reason}: {outcome.message}")
            # without a success_topic, _service or _question no task is `completed`: it ends by its time
            if outcome.reason == "error":
                return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
