#!/usr/bin/env bash
#
# Sets the environment up in build/ and compiles the sources, tests and programs to build/js. Needs Node and npm. Does nothing that is already done.

set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
[ -e build/go.mod ] || echo 'module ignored // so that ./... of Go and the tests of this repository leave the folder out' >build/go.mod
if ! cmp -s package-lock.json build/installed-lock.json; then
	cp package.json package-lock.json build/
	(cd build && npm ci --no-audit --no-fund --loglevel=error)
	cp package-lock.json build/installed-lock.json
fi
[ -L node_modules ] || ln -s build/node_modules node_modules
node node_modules/typescript/bin/tsc -p tsconfig.json # .bin/tsc may be that of typescript-oldest
