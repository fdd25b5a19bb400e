#!/usr/bin/env bash
#
# Runs this SDK's worker through the rules of `router conformance`. The router is $ROUTER, built from the checkout if that is unset.
#
# Usage: ./conformance.sh [async|threads [FLAG...]]    the style of the handler, async by default, and flags of router conformance

set -euo pipefail
cd "$(dirname "$0")"
style=${1:-async}
shift || true

./setup.sh
if [ -z "${ROUTER-}" ]; then
	mkdir -p build/bin
	ROUTER=$PWD/build/bin/router
	(cd ../.. && go build -o "$ROUTER" ./cmd/router)
fi
export PYTHONPATH=$PWD/src
# Dozens of interpreters start at once: they may take longer for that than the 10 s that the command waits by default.
exec "$ROUTER" conformance --patience 180s "$@" -- "$PWD/build/venv/bin/python" "$PWD/conformance.py" "$style"
