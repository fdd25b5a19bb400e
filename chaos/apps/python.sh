#!/usr/bin/env bash
#
# The application of the fault tests on the Python SDK; with the argument prepare, what it needs.

set -euo pipefail
cd "$(dirname "$0")"
build=../../sdk/python/build/chaos
if [ "${1:-}" = prepare ]; then
	[ -x "$build/bin/python" ] || python3 -m venv "$build"
	"$build/bin/pip" install --quiet --disable-pip-version-check --upgrade ../../sdk/python
	exit
fi
exec "$build/bin/python" app.py
