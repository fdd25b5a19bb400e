#!/usr/bin/env bash
#
# Runs the Python example beside three members, for a hundred events, and checks that its worker keeps the rules of the protocol. Needs python3 (with venv and pip) and Go.
#
# Usage: examples/python/try.sh [FOLDER]    where the virtual environment and the generated code go (default build/)

set -euo pipefail
cd "$(dirname "$0")"
build=${1:-build}
mkdir -p "$build"
build=$(cd "$build" && pwd)

[ -x "$build/venv/bin/python" ] || python3 -m venv "$build/venv"
"$build/venv/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt
"$build/venv/bin/python" -m grpc_tools.protoc -I ../../proto --python_out="$build" --grpc_python_out="$build" ringfence/app/v1/app.proto
(cd ../.. && go build -o "$build/router" ./cmd/router)

PYTHONPATH="$build" "$build/router" dev --rate 100 --events 100 -- "$build/venv/bin/python" "$PWD/app.py" | tee "$build/output"

handled=$(grep -c 'turns here, attempt 1$' "$build/output" || true)
if [ "$handled" != 100 ] || grep -q 'Traceback\|no stream' "$build/output"; then
	echo "handled $handled of 100 events at the first attempt" >&2
	exit 1
fi
PYTHONPATH="$build" "$build/router" conformance -- "$build/venv/bin/python" "$PWD/conformance.py"
