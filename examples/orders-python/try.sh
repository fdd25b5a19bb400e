#!/usr/bin/env bash
#
# Runs the Python example beside three members, for a hundred events, and its tests. Needs python3 (with venv and pip) and Go.
#
# Usage: examples/orders-python/try.sh [FOLDER]    where the virtual environment goes (default build/)

set -euo pipefail
cd "$(dirname "$0")"
build=${1:-build}
mkdir -p "$build"
build=$(cd "$build" && pwd)

[ -x "$build/venv/bin/pip" ] || python3 -m venv --clear "$build/venv"
"$build/venv/bin/pip" install --quiet --disable-pip-version-check ../../sdk/python pytest
(cd ../.. && go build -o "$build/router" ./cmd/router)

"$build/venv/bin/python" -m pytest -q .

# The generated events have no cents, but a turn, from 1. Each application says at its end what it has booked.
ORDERS_CENTS_FIELD=turn ../../tools/limited.sh 600 "$build/router" dev --rate 100 --events 100 -- "$build/venv/bin/python" "$PWD/app.py" 2>&1 | tee "$build/output"

booked=$(sed -n 's/^\(app-[0-9]*\).*"orders": \([0-9]*\).*/\1 \2/p' "$build/output" | awk '{last[$1] = $2} END {for (app in last) sum += last[app]; print sum + 0}')
if [ "$booked" != 100 ] || grep -q 'Traceback\|no stream\|handler failed' "$build/output"; then
	echo "booked $booked of 100 orders" >&2
	exit 1
fi
