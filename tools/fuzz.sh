#!/usr/bin/env bash
#
# Fuzzes every target for a time, on one core each, as many at once as there are cores:
#
#   tools/fuzz.sh 10s
#
# A target should have a corpus in testdata/fuzz. An input that fails is kept there by Go, and belongs into the commit that fixes it. Inputs
# that reach new code are kept in Go's build cache, from where the next run goes on.
#
# Before Go 1.27, a run can end with "context deadline exceeded" though no input failed, when its time is over on a busy machine
# (https://go.dev/issue/75804). Such a run is made once more, and the script says so.

set -euo pipefail
cd "$(dirname "$0")/.."

fuzztime=${1:-30s}
cores=$(getconf _NPROCESSORS_ONLN)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export fuzztime tmp
cache=$("${GO:-go}" env GOCACHE)/fuzz/$(GOWORK=off "${GO:-go}" list -m)
export cache

grep -r --include='*_test.go' '^func Fuzz' . |
	sed 's|^\./\(.*\)/[^/]*_test\.go:func \(Fuzz[A-Za-z0-9_]*\).*|\1 \2|' | sort >"$tmp/targets"
[ -s "$tmp/targets" ] || {
	echo "there is no target" >&2
	exit 1
}

while read -r package target; do
	[ -n "$(ls "$package/testdata/fuzz/$target" 2>/dev/null)" ] || {
		echo "note: $package $target has no corpus in testdata/fuzz/$target but its own seeds"
	}
done <"$tmp/targets"

# One binary for all targets of a package.
cut -d' ' -f1 "$tmp/targets" | uniq | while read -r package; do
	"${GO:-go}" test -c -fuzz=. -o "$tmp/${package//\//-}.test" "./$package" </dev/null
done

run() {
	local package=$1 target=$2 log=$3
	(cd "$package" && "$tmp/${package//\//-}.test" -test.run='^$' -test.fuzz="^$target\$" -test.fuzztime="$fuzztime" \
		-test.fuzzcachedir="$cache/$package" -test.parallel=1) >"$log" 2>&1
}

# late reports whether a run failed because its time was over, and for nothing else.
late() {
	grep -qx ' *context deadline exceeded' "$1" && ! grep -qE 'Failing input|panic|_test\.go:|fuzzing process' "$1"
}

fuzz() {
	local package=$1 target=$2 log=$tmp/$2.log
	mkdir -p "$cache/$package"
	if ! run "$package" "$target" "$log" && late "$log"; then
		echo "note: $package $target ended late, without an input that fails: once more"
		run "$package" "$target" "$log" || true
	fi
	if [ "$(tail -n 1 "$log")" = PASS ]; then
		echo "ok   $package $target: $(grep 'execs:' "$log" | tail -n 1 | sed 's/.*\(execs: [0-9]*\).*\(new interesting.*\)/\1, \2/')"
	else
		cat "$log" >&2
		echo "FAIL $package $target" >&2
		return 1
	fi
}
export -f fuzz run late

xargs -P "$cores" -L 1 bash -c 'fuzz "$0" "$1"' <"$tmp/targets"
