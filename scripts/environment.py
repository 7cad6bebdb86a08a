"""Bring .venv up to date: ROS 2 from the Python package index, vla_accel_msgs, the package itself, OpenGL.

Each stage has a stamp in .venv/stamps with a digest of its inputs and runs only when that changes, so that a
second call takes a fraction of a second. A stage that fails leaves no stamp and says why. The script runs on
the machine's Python before anything is installed, so it uses only the standard library.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import debian
import opengl

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMPS = VENV / "stamps"
REQUIREMENTS = ROOT / "requirements"
ENDS = {
    "humble": datetime.date(2027, 5, 31),
    "jazzy": datetime.date(2029, 5, 31),
    "kilted": datetime.date(2026, 12, 31),
    "lyrical": datetime.date(2031, 5, 31),
}
"""When each distribution that this package is for gets its last update."""
DISTROS = ("jazzy", "kilted")  # those with wheels, the default first; each has a file ros-*.txt there
INTERFACES = ROOT / "test" / "interfaces"  # interface packages that the index does not have


def digest(*parts: Path | str) -> str:
    """Return the SHA-256 over strings and file contents; a folder stands for all files below it."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            total.update(part.encode() + b"\0")
            continue
        for path in sorted(part.rglob("*")) if part.is_dir() else [part]:
            if path.is_file() and "__pycache__" not in path.parts:
                total.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return total.hexdigest()


def stage(name: str, doing: str, stamp: str, work: Callable[[], None]) -> None:
    """Do the work unless the stage's stamp shows that it was done for the same inputs."""
    path = STAMPS / name
    if path.exists() and path.read_text() == stamp:
        return
    print(f"{name}: {doing}", flush=True)
    started = time.monotonic()
    path.unlink(missing_ok=True)
    work()
    STAMPS.mkdir(exist_ok=True)
    path.write_text(stamp)
    print(f"{name}: done in {time.monotonic() - started:.0f} s", flush=True)


def run(name: str, command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    """Run a command. Its output goes to the terminal, or to a log whose end is shown on failure."""
    log = VENV / "logs" / f"{name}.txt"
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as output:
        shown = None if sys.stdout.isatty() else output
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=shown, stderr=shown
        )
    if done.returncode:
        if shown is not None:
            print("\n".join(log.read_text(errors="replace").splitlines()[-40:]), file=sys.stderr)
        sys.exit(f"{name}: `{' '.join(map(str, command[:4]))} ...` ended with status {done.returncode}")


def ended(distro: str, today: datetime.date) -> str:
    """Return a sentence if a distribution gets no updates any more, else nothing."""
    if today <= ENDS[distro]:
        return ""
    newest = max(DISTROS, key=ENDS.__getitem__)
    return f"ROS 2 {distro} ended on {ENDS[distro]}: make DISTRO={newest} has updates until {ENDS[newest]}"


def check_machine() -> None:
    """Exit on a machine that the wheels do not fit. Install, or name, the packages that compiling the
    messages needs."""
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        sys.exit(
            f"ROS 2 from the Python package index is for Linux x86_64 and this is {machine}: "
            "install ROS 2 for it and build with colcon, as README.md says."
        )
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    missing = [
        package
        for package, found in {
            "g++": any(map(shutil.which, ("c++", "g++", "clang++"))),
            "make": shutil.which("make"),
            f"python{sys.version_info[0]}.{sys.version_info[1]}-dev": header.exists(),
        }.items()
        if not found
    ]
    if missing and not (debian.can_install() and debian.install(*missing)):
        sys.exit(f"Building the ROS messages needs {', '.join(missing)}: apt-get install {' '.join(missing)}")


def make_venv() -> None:
    check_machine()
    if VENV.is_symlink():  # made anew, it would be emptied for whom it belongs to
        sys.exit(f"{VENV} is a link to {VENV.resolve()}: remove the link to have an environment here")
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)


def install(name: str, *arguments: str | Path) -> None:
    """Run pip install under the constraints."""
    pip: list[str | Path] = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check"]
    run(name, [*pip, "-c", REQUIREMENTS / "constraints.txt", *arguments])


def install_wheels(ros: Path) -> None:
    install("wheels", "pip")  # the resolver in a distribution's pip can be too old to finish
    cmake = [] if shutil.which("cmake") else ["cmake"]
    install("wheels", "-r", REQUIREMENTS / "venv.txt", "-r", ros, *cmake)
    relocate_exports()


def relocate_exports() -> None:
    """Replace the build machine's Python paths in the wheels' CMake exports with this machine's."""
    query = "import sysconfig, numpy; print(sysconfig.get_paths()['include']); print(numpy.get_include())"
    found = subprocess.run([PYTHON, "-c", query], check=True, capture_output=True, text=True)
    python_include, numpy_include = found.stdout.split("\n")[:2]
    for path in (VENV / "share").rglob("*.cmake"):
        lines = path.read_text().split('"')
        places = [
            ";".join(_relocated(p, python_include, numpy_include) for p in line.split(";")) for line in lines
        ]
        if places != lines:
            path.write_text('"'.join(places))


def _relocated(place: str, python_include: str, numpy_include: str) -> str:
    if not place.startswith("/opt/python/"):
        return place
    return numpy_include if "/numpy/" in place else python_include


def build_interfaces(name: str, *packages: str) -> None:
    """Build interface packages with colcon, directly into .venv, where Python and the loader look."""
    if not packages:
        return
    work = VENV / "colcon" / name
    shutil.rmtree(work, ignore_errors=True)
    environment = {
        **os.environ,
        "AMENT_PREFIX_PATH": str(VENV),
        "CMAKE_PREFIX_PATH": str(VENV),
        "COLCON_HOME": str(work),  # ignore the user's colcon defaults
        "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    colcon: list[str | Path] = [VENV / "bin" / "colcon", "--log-base", work / "log", "build"]
    colcon += ["--base-paths", *packages, "--build-base", work / "build"]
    colcon += ["--merge-install", "--install-base", VENV]
    colcon += ["--event-handlers", "console_cohesion+", "--cmake-args", "-DBUILD_TESTING=OFF"]
    run(name, [*colcon, f"-DPython3_EXECUTABLE={PYTHON}"], environment)


def not_installed(packages: list[Path]) -> list[str]:
    """Return the interface packages that .venv does not have from elsewhere."""
    query = "import importlib.util, sys; print(*(n for n in sys.argv[1:] if importlib.util.find_spec(n)))"
    names = [package.name for package in packages]
    built = VENV / "colcon" / "interfaces" / "build"
    found = subprocess.run([PYTHON, "-c", query, *names], check=True, capture_output=True, text=True)
    others = {name for name in found.stdout.split() if not (built / name).is_dir()}
    return [str(package.relative_to(ROOT)) for package in packages if package.name not in others]


def install_package() -> None:
    run("package", [PYTHON, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--editable", "."])


def install_browser() -> None:
    """Try to have a browser for the tests of pages, which are skipped without one."""
    if not shutil.which("chromium") and not (debian.can_install() and debian.install("chromium")):
        print("browser: no chromium here, so pages are tested without a browser")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--test", action="store_true", help="also what `make test` needs")
    parser.add_argument("--distro", default=DISTROS[0], help=f"the ROS distribution: {', '.join(DISTROS)}")
    wanted = parser.parse_args()
    if wanted.distro not in DISTROS:
        sys.exit(f"DISTRO={wanted.distro} has no wheels: give one of {', '.join(DISTROS)}")
    ros = REQUIREMENTS / f"ros-{wanted.distro}.txt"
    if warning := ended(wanted.distro, datetime.date.today()):
        print(warning, file=sys.stderr)

    checkout = os.open(ROOT, os.O_RDONLY)
    fcntl.flock(checkout, fcntl.LOCK_EX)  # a second make waits for the first
    # The scripts of a virtual environment contain its Python and its path, so both must stay the same, and so
    # must the distribution: wheels that only the old one has would stay.
    interpreter = digest(sys.version, str(ROOT), wanted.distro)
    wheels = digest(
        interpreter, ros, *(REQUIREMENTS / f"{name}.txt" for name in ("constraints", "robot", "demo", "venv"))
    )
    stage("interpreter", f"Python {platform.python_version()} in .venv", interpreter, make_venv)
    stage("wheels", "ROS 2, torch and MuJoCo (minutes, the first time)", wheels, lambda: install_wheels(ros))
    messages = digest(wheels, ROOT / "msg")
    stage("messages", "building vla_accel_msgs", messages, lambda: build_interfaces("messages", "msg"))
    manifests = [ROOT / name for name in ("package.xml", "pyproject.toml", "setup.cfg", "setup.py")]
    stage("package", "vla_accel_ros, editable", digest(wheels, *manifests), install_package)
    stage("opengl", "looking for a way to draw without a display", interpreter, lambda: opengl.provide(VENV))
    if wanted.test:
        tools = digest(wheels, REQUIREMENTS / "test.txt")
        stage(
            "tools", "pytest, ruff and mypy", tools, lambda: install("tools", "-r", REQUIREMENTS / "test.txt")
        )
        stage("browser", "chromium, where it can be had", interpreter, install_browser)
        packages = [path.parent for path in sorted(INTERFACES.glob("*/package.xml"))]
        stage(
            "interfaces",
            f"building {', '.join(package.name for package in packages)} for the tests",
            digest(wheels, INTERFACES),
            lambda: build_interfaces("interfaces", *not_installed(packages)),
        )


if __name__ == "__main__":
    main()
