#!/usr/bin/env bash
#
# Makes the named targets one after the other, and says how long each took.

set -euo pipefail
cd "$(dirname "$0")/.."

times=
for target in "$@"; do
	begin=$SECONDS
	echo "== $target"
	make --no-print-directory "$target" || {
		echo "== $target failed after $((SECONDS - begin)) s" >&2
		exit 1
	}
	times="$times $target $((SECONDS - begin)) s,"
done
echo "== all green:${times%,}"
