#!/usr/bin/env bash
#
# Makes the virtual environment build/venv with what tests need, once for each content of requirements-dev.txt.

set -euo pipefail
cd "$(dirname "$0")"
if ! cmp -s requirements-dev.txt build/venv/requirements; then
	python3 -m venv --clear build/venv
	build/venv/bin/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	cp requirements-dev.txt build/venv/requirements
fi
