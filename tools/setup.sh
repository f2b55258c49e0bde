#!/usr/bin/env bash
# Finds a Python that is new enough and hands over to tools/setup_env.py, which does the set-up.
# PYTHON=/path/to/python chooses one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

for python in ${PYTHON:-python3.11 python3.12 python3.13 python3 python}; do
    if new_enough "$python"; then
        exec "$python" -m tools.setup_env
    fi
done

{
    echo "set-up: no Python 3.11 or newer found"
    if [ -n "${PYTHON:-}" ]; then
        echo "  PYTHON=$PYTHON is older than 3.11, or does not run"
    else
        echo "  looked on PATH for python3.11, python3.12, python3.13, python3 and python"
    fi
    echo "  try: sudo apt-get install python3.11 python3.11-venv python3.11-dev"
    echo "  or:  PYTHON=/path/to/python3.11 make setup"
} >&2
exit 1
