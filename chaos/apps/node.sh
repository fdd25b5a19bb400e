#!/usr/bin/env bash
#
# The application of the fault tests on the TypeScript SDK; with the argument prepare, what it needs.

set -euo pipefail
cd "$(dirname "$0")"
sdk=$(cd ../../sdk/typescript && pwd)
if [ "${1:-}" = prepare ]; then
	(cd "$sdk" && npm ci --silent --no-audit --no-fund && npm run --silent build)
	mkdir -p "$sdk/build/chaos/node_modules/@ringfence"
	ln -sfn "$sdk" "$sdk/build/chaos/node_modules/@ringfence/client"
	exit
fi
cp app.mjs "$sdk/build/chaos/app-$$.mjs" # beside the package that it imports
exec node "$sdk/build/chaos/app-$$.mjs"
