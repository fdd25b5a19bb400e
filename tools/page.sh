#!/usr/bin/env bash
#
# Tests the status page with a headless Chromium (e2e/page), and what a refresh costs the router, or takes the pictures of it for the documents. Needs Node 20 or later with npm, and Chromium or Chrome. What is not there is
# named, and the tests are skipped; with CI set that is a failure.
#
# Usage: tools/page.sh [FOLDER]    with a FOLDER it writes the pictures there instead

set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
	echo "tools/page.sh: skipped, it needs $1" >&2
	[ -z "${CI:-}" ] || exit 1
	exit 0
}

CHROMIUM=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
[ -n "$CHROMIUM" ] || skip "Chromium (Debian's package chromium)"
{ [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] && npm --version; } >/dev/null 2>&1 || skip "Node 20 or later with npm"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${GO:-go}" build -o "$folder/page" ./e2e/page
export CHROMIUM PAGE=$folder/page PICTURES=${1:+$(realpath "$1")}
export npm_config_fetch_timeout=60000 npm_config_fetch_retries=5
[ -n "$PICTURES" ] || "${GO:-go}" test ./internal/adminhttp/statuspage -run ARefreshIsQuick -count=1
cd e2e/page
npm ci --ignore-scripts --no-audit --no-fund --silent
# The limit is for each test and for the file. Each wait has a limit of its own (chromium.mjs); beside compilers and the race detector all of it took more than five minutes.
node --test --test-timeout=900000 --test-reporter=spec page.test.mjs
