"""Runs a script of this folder for every compute capability, in forks of a process that has imported Triton.

    python test/kernels/each_capability.py SCRIPT '{"80": [ARGUMENT, ...], ...}'

prints in JSON, for each capability, how the script ended, what it printed, and its errors.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TIMEOUT_S = 1400
"""Seven architectures at a low priority beside nodes, on a slow machine without a warm cache."""


def needs_of(script: Path, arguments: Mapping[str, list[str]]) -> dict[str, list[dict[str, Any]] | str]:
    """By capability what each kernel needs, or the errors of a script that failed. arguments: after the
    capability."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, __file__, str(script), json.dumps(dict(arguments))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]] | str] = {}
    for capability, (status, said, errors) in json.loads(done.stdout).items():
        failed = errors or f"status {status}"
        found[capability] = failed if status else [json.loads(line) for line in said.splitlines()]
    return found


def main() -> None:
    import compiling  # noqa: F401  # what all of the scripts import takes two seconds

    script, arguments = sys.argv[1], json.loads(sys.argv[2])
    ended = {}
    for capability, more in arguments.items():
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
            child = os.fork()
            if child == 0:
                os.dup2(said.fileno(), 1)
                os.dup2(errors.fileno(), 2)
                become(script, [capability, *more])
            _, status = os.waitpid(child, 0)
            ended[capability] = os.waitstatus_to_exitcode(status), *map(read, (said, errors))
    print(json.dumps(ended))


def become(script: str, arguments: list[str]) -> None:
    """Run the script and end."""
    status = 0
    try:
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def read(file: Any) -> str:
    file.seek(0)
    return file.read()


if __name__ == "__main__":
    main()
