#!/usr/bin/env bash
#
# Fails if the protos no longer understand what those of main wrote. AGAINST names another commit to compare with.

set -euo pipefail
cd "$(dirname "$0")/.."

git() { command git -c safe.directory='*' "$@"; }

base=
for ref in ${AGAINST:-main origin/main}; do
	if git rev-parse -q --verify "$ref^{commit}" >/dev/null 2>&1; then
		base=$ref
		break
	fi
done
if [ -z "$base" ] && [ -n "${AGAINST:-}" ]; then
	echo "breaking: there is no commit $AGAINST" >&2
	exit 1
fi
if [ -z "$base" ] || ! git ls-tree -r --name-only "$base" -- proto | grep -q '\.proto$'; then
	echo "breaking: main has no protos yet, nothing to compare with"
	exit 0
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
git archive "$base" proto | tar -x -f - -C "$tmp"
cp buf.yaml "$tmp/buf.yaml"
tools/buf.sh breaking --against "$tmp"
