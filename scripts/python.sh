#!/usr/bin/env bash
# Prints a Python that can make .venv: 3.10 to 3.13 with venv and pip. A given one is taken or refused; otherwise the
# default python3 comes first, since its headers are the likeliest to be there. Root on a bare Debian or Ubuntu gets one.
set -u

fitting='import sys, ensurepip, venv
if not (3, 10) <= sys.version_info[:2] <= (3, 13): sys.exit(1)
print(getattr(sys, "_base_executable", "") or sys.executable)'

find_one() {
    local candidate
    for candidate in "$@"; do
        "$candidate" -c "$fitting" 2>/dev/null && return
    done
    return 1
}

if [ $# -gt 0 ]; then
    find_one "$1" && exit
    echo "PYTHON=$1 does not fit: give a Python from 3.10 to 3.13 that has its venv module." >&2
    exit 1
fi

candidates=(python3 python3.12 python3.11 python3.13 python3.10)
find_one "${candidates[@]}" && exit
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Python: installing python3 with venv and headers" >&2
    (apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y python3 python3-venv python3-dev) >/dev/null 2>&1
    find_one "${candidates[@]}" && exit
fi
echo "No Python from 3.10 to 3.13 with its venv module was found: install one (Debian, Ubuntu: python3 python3-venv python3-dev) or name it, make PYTHON=/path/to/python3." >&2
exit 1
