#!/usr/bin/env bash
#
# Builds the wheel and the source distribution into build/dist. The version is $RINGFENCE_VERSION, or that of the newest git tag.

set -euo pipefail
cd "$(dirname "$0")"
./setup.sh
rm -rf build/dist
build/venv/bin/python -m build --no-isolation --outdir build/dist . >build/build.log 2>&1 || {
	cat build/build.log >&2
	exit 1
}
