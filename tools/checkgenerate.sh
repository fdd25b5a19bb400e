#!/usr/bin/env bash
#
# Fails if the generated code is not what `make generate` makes. It generates in a copy, so the tree stays
# as it is, and a generated file whose source is gone is found too.

set -euo pipefail
cd "$(dirname "$0")/.."

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/is" "$tmp/should"

# The files of the tree as they are now, but nothing that git ignores.
git -c safe.directory='*' ls-files -z --cached --others --exclude-standard |
	while IFS= read -r -d '' file; do
		if [ -e "$file" ]; then printf '%s\0' "$file"; fi
	done |
	tar -c -f - --null -T - | tar -x -f - -C "$tmp/is"
cp -R "$tmp/is/." "$tmp/should"

find "$tmp/should" -name '*.pb.go' -exec rm {} +
make -C "$tmp/should" --no-print-directory -s generate

if ! diff -r -u "$tmp/is" "$tmp/should" >"$tmp/difference"; then
	head -n 60 "$tmp/difference" >&2
	echo "The generated code is not up to date: run 'make generate' and commit what changes." >&2
	exit 1
fi
