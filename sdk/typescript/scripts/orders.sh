#!/usr/bin/env bash
#
# Tests examples/orders-typescript on the built package. The example's own folder remains clean.

set -euo pipefail
cd "$(dirname "$0")/.."
rm -rf build/orders
cp -R ../../examples/orders-typescript build/orders
cd build/orders
rm -rf build node_modules package-lock.json
mkdir -p node_modules/@ringfence # all else is found in build/node_modules
ln -s ../../../package node_modules/@ringfence/client
npm test --silent
