#!/usr/bin/env bash
#
# Checks the SDK against the rules of its protocol (docs/sdk-protocol.md). Needs Linux, Node and npm, and Go unless ROUTER names the router's binary.
#
# Usage: sdk/typescript/conformance.sh [FLAG...]    flags of `router conformance`, such as --only drain

set -euo pipefail
cd "$(dirname "$0")"
scripts/setup.sh
if [ -z "${ROUTER:-}" ]; then
	ROUTER=$PWD/build/router
	(cd ../.. && go build -o "$ROUTER" ./cmd/router)
fi
# On a busy machine a start takes longer than the 10 s that the command waits by default.
exec "$ROUTER" conformance --patience 180s "$@" -- node "$PWD/build/js/conformance/worker.js"
