#!/usr/bin/env bash
#
# Tests everything of this SDK: its unit tests, the package, the README and the example on a clean environment, and the rules of the protocol. Silent when all is well.
# Needs Node 20 or later, npm, openssl, and Go unless ROUTER names the router's binary. All that it makes is in build/.

set -euo pipefail
cd "$(dirname "$0")"

# Runs a step, and shows what it wrote only if it fails.
step() {
	local name=$1 log
	shift
	mkdir -p build
	log=build/$name.log
	if ! "$@" >"$log" 2>&1; then
		cat "$log" >&2
		echo "sdk/typescript: $name failed" >&2
		exit 1
	fi
}

# A fixed version: each run makes the same package.
export RINGFENCE_VERSION=${RINGFENCE_VERSION:-0.0.0-test}

step setup scripts/setup.sh
step generated node scripts/generate.mjs --check
# A file takes seconds, or minutes at low priority on a busy machine. What hangs is named at its end. Tests wait for most of their time.
step unit node --test --test-concurrency=6 --test-timeout=600000 build/js/test/*.test.js
step package node scripts/package.mjs
# The programs of README.md mostly wait, so the rest runs beside them.
step readme node scripts/readme.mjs &
readme=$!
trap 'kill "$readme" 2>/dev/null || true' EXIT
step orders scripts/orders.sh
step conformance ./conformance.sh
trap - EXIT
wait "$readme"
