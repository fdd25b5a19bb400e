#!/usr/bin/env bash
#
# Runs buf, of the version that tools/buf.mod pins:
#
#   tools/buf.sh lint
#
# The binary comes from buf's npm package, checked against the hashes in tools/buf/package-lock.json, since building buf takes three
# minutes of CPU time. Without npm, or when its registry does not answer, Go builds it.

set -euo pipefail
tools=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's|^\tgithub.com/bufbuild/buf v\([0-9.]*\).*|\1|p' "$tools/buf.mod")
grep -q "\"@bufbuild/buf\": \"$version\"" "$tools/buf/package.json" || {
	echo "tools/buf/package.json has another version than tools/buf.mod, $version: change it, and run in tools/buf:" >&2
	echo "npm install --package-lock-only --omit-lockfile-registry-resolved --ignore-scripts" >&2
	exit 1
}

# installed prints the path of the binary, if there is one for this version.
dir=${XDG_CACHE_HOME:-$HOME/.cache}/ringfence/buf-$version
installed() {
	local binary
	for binary in "$dir"/node_modules/@bufbuild/buf-*/bin/buf; do
		[ -x "$binary" ] && printf '%s\n' "$binary" && return
	done
	return 1
}

# install leaves the packages in $dir, all of them or none. Scripts of packages do not run.
install() {
	command -v npm >/dev/null 2>&1 || return 1
	local tmp
	mkdir -p "${dir%/*}"
	tmp=$(mktemp -d "${dir%/*}/.buf.XXXXXX")
	cp "$tools"/buf/package*.json "$tmp"
	if (cd "$tmp" && npm ci --ignore-scripts --no-audit --no-fund) >"$tmp/log" 2>&1; then
		if [ -e "$dir" ]; then rm -rf "$tmp"; else mv "$tmp" "$dir"; fi # another run may have been first
		return 0
	fi
	echo "tools/buf.sh: npm cannot install buf, so Go builds it: $(grep -m1 'npm error' "$tmp/log" || tail -n 1 "$tmp/log")" >&2
	rm -rf "$tmp"
	return 1
}

if binary=$(installed) || { install && binary=$(installed); }; then
	exec "$binary" "$@"
fi
GOWORK=off exec "${GO:-go}" tool -modfile="$tools/buf.mod" buf "$@"
