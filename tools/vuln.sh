#!/usr/bin/env bash
#
# Looks for known vulnerabilities in what the router calls. Where the database cannot be reached it says so and succeeds: nothing is known then.
# A vulnerability fails it, and so does any other error. Another database: tools/vuln.sh -db file:///PATH

set -euo pipefail
cd "$(dirname "$0")/.."

unreachable() {
	echo "== vuln: NOT CHECKED: the database of vulnerabilities cannot be reached, so nothing is known about this tree"
	exit 0
}

# Asked first, where curl is: the tool and all packages take a while to compile. Only a name or an address that does not answer ends it here.
if [ "$#" = 0 ] && command -v curl >/dev/null 2>&1; then
	code=0
	curl -sS --max-time 20 -o /dev/null https://vuln.go.dev/index/db.json || code=$?
	case "$code" in 5 | 6 | 7 | 28) unreachable ;; esac # proxy, name, connection, time
fi

govulncheck=$(tools/tool.sh govulncheck)
status=0
output=$("$govulncheck" "$@" ./... 2>&1) || status=$?
printf '%s\n' "$output"
[ "$status" -ne 0 ] || exit 0

# 3 says that something was found. All else is an error of its own.
if [ "$status" -ne 3 ] && grep -q 'fetching vulnerabilities' <<<"$output" &&
	grep -Eq 'dial tcp|no such host|i/o timeout|TLS handshake timeout|Service Unavailable|connection refused|Forbidden' <<<"$output"; then
	unreachable
fi
exit "$status"
