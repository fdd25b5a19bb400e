#!/usr/bin/env bash
#
# The application of the fault tests on the TypeScript SDK; with the argument prepare, what it needs.

set -euo pipefail
cd "$(dirname "$0")"
sdk=$(cd ../../sdk/typescript && pwd)
if [ "${1:-}" = prepare ]; then
	"$sdk/scripts/setup.sh"
	(cd "$sdk" && npm run --silent build)
	mkdir -p "$sdk/build/chaos/node_modules/@ringfence"
	ln -sfn "$sdk" "$sdk/build/chaos/node_modules/@ringfence/client"
	echo '{"private": true, "type": "module"}' >"$sdk/build/chaos/package.json" # else Node takes build/ for the package itself
	cp app.mjs "$sdk/build/chaos/" # Node looks for the package beside the program
	exit
fi
exec node "$sdk/build/chaos/app.mjs"
