#!/usr/bin/env bash
#
# The application of the fault tests on the Python SDK; with the argument prepare, what it needs.

set -euo pipefail
cd "$(dirname "$0")"
sdk=../../sdk/python
if [ "${1:-}" = prepare ]; then
	exec "$sdk/setup.sh"
fi
PYTHONPATH=$sdk/src exec "$sdk/build/venv/bin/python" app.py
