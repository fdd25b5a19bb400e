#!/usr/bin/env bash
#
# Tests the Python SDK: generated code, lint, types, unit tests, package, README, and the rules of `router conformance` for both styles of handlers. Quiet when
# all is well. Needs python3 (3.10 or later, with venv and pip) and Go. The router is $ROUTER, built from the checkout if that is unset.
#
# Usage: sdk/python/test.sh

set -euo pipefail
cd "$(dirname "$0")"
mkdir -p build/bin build/logs

./setup.sh
if [ -z "${ROUTER-}" ]; then
	export ROUTER=$PWD/build/bin/router
	(cd ../.. && go build -o "$ROUTER" ./cmd/router)
fi

# quietly NAME COMMAND... shows the output of a command only if it fails.
quietly() {
	local log=build/logs/$1.log
	shift
	"$@" >"$log" 2>&1 || {
		echo "== $* failed" >&2
		cat "$log" >&2
		return 1
	}
}

# The rules mostly wait, so both styles run beside each other, and beside what computes.
quietly async ./conformance.sh async &
async=$!
quietly threads ./conformance.sh threads &
threads=$!

python=build/venv/bin/python
result=0
{
	cmp LICENSE ../../LICENSE &&
		quietly generate ./generate.sh --check &&
		quietly ruff "$python" -m ruff check . &&
		quietly format "$python" -m ruff format --check . &&
		quietly mypy "$python" -m mypy &&
		quietly build ./build.sh
} || result=1

wait "$async" || result=1
wait "$threads" || result=1

# After the rules: tests and rules share few CPUs. The tests wait for most of their time, so those of a session, of reservations, and all others run beside
# each other, and beside the programs of README.md.
tests=()
beside() {
	quietly "$@" &
	tests+=($!)
}
beside worker "$python" -m pytest -p no:cacheprovider tests/test_worker.py
beside reservations "$python" -m pytest -p no:cacheprovider tests/test_reservations.py
[ "$result" != 0 ] || beside readme tests/readme.sh "$ROUTER" # with what build.sh has built
{
	quietly tests "$python" -m pytest -p no:cacheprovider --ignore=tests/test_worker.py --ignore=tests/test_reservations.py &&
		PYTHONPATH=$PWD/src quietly orders "$python" -m pytest -q -p no:cacheprovider -p ringfence.pytest_plugin ../../examples/orders-python
} || result=1
for process in "${tests[@]}"; do wait "$process" || result=1; done
exit "$result"
