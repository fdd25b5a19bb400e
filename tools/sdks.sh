#!/usr/bin/env bash
#
# Tests the SDKs in other languages, one after the other, each by its own test.sh. One whose language is not installed is skipped and named; with CI set that is a failure.
#
# Usage: tools/sdks.sh [python] [typescript] [java]    all without arguments

set -euo pipefail
cd "$(dirname "$0")/.."

# has NAME reports whether the language of an SDK is installed.
has() {
	case "$1" in
	python) python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' ;;
	typescript) [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] && npm --version ;;
	java) [ "$(javac -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p')" -ge 17 ] && mvn --version ;; # it can print JAVA_TOOL_OPTIONS first
	esac >/dev/null 2>&1
}

wants() {
	case "$1" in
	python) echo "Python 3.10 or later with venv" ;;
	typescript) echo "Node 20 or later with npm" ;;
	java) echo "a JDK of 17 or later and Maven" ;;
	*)
		echo "tools/sdks.sh: there is no SDK $1" >&2
		exit 2
		;;
	esac
}

[ "$#" -gt 0 ] || set -- python typescript java
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ROUTER=$folder/router
# Of all checkouts, as the other tools' caches are: a clean one need not fetch Java's libraries again.
export MAVEN_REPO_LOCAL=${MAVEN_REPO_LOCAL:-${XDG_CACHE_HOME:-$HOME/.cache}/ringfence/m2}
# A registry that falls silent in mid-answer costs a minute, not the half hour that Maven would wait.
export MAVEN_OPTS="${MAVEN_OPTS:-} -Dmaven.wagon.rto=60000 -Daether.connector.requestTimeout=60000"
export PIP_DEFAULT_TIMEOUT=60 PIP_RETRIES=10 npm_config_fetch_timeout=60000 npm_config_fetch_retries=5
go build -o "$ROUTER" ./cmd/router
for name in "$@"; do
	needs=$(wants "$name")
	if ! has "$name"; then
		echo "sdk/$name is skipped: it needs $needs" >&2
		[ -z "${CI:-}" ] || exit 1
		continue
	fi
	begin=$SECONDS
	# On a busy machine the slowest takes seven minutes. A hang is shown, with the end of what its steps have written, and fails.
	tools/limited.sh 900 "sdk/$name/test.sh" || {
		code=$?
		[ "$code" != 124 ] || find "sdk/$name/build" -maxdepth 2 -name '*.log' -newer "$ROUTER" -print -exec tail -n 30 {} ';' >&2
		exit "$code"
	}
	echo "ok  	sdk/$name	$((SECONDS - begin))s"
done
