#!/usr/bin/env bash
#
# Pins the images of deploy/ and .ko.yaml by digest: NAME:TAG becomes NAME:TAG@sha256:..., as the registry says now. A digest that is there
# already is replaced. Needs crane, or docker with buildx, and a network in which the registries answer:
#
#   tools/pin-images.sh            # all files
#   tools/pin-images.sh --check    # fails if an image has no digest
#
# Nothing is written unless all digests were found.

set -euo pipefail
cd "$(dirname "$0")/.."

files=(deploy/Dockerfile deploy/compose/compose.yaml .ko.yaml)

# images prints "FILE NAME:TAG[@DIGEST]" for each image of others.
images() {
	grep -EoH '^FROM +(--platform=[^ ]+ +)?[^ ]+:[^ ]+' deploy/Dockerfile | sed -E 's/:FROM +(--platform=[^ ]+ +)?/ /'
	grep -EoH '^ +image: +[^ ]+:[^ ]+' deploy/compose/compose.yaml | sed -E 's/: +image: +/ /'
	grep -EoH '^defaultBaseImage: +[^ ]+' .ko.yaml | sed -E 's/:defaultBaseImage: +/ /'
}

if [ "${1:-}" = --check ]; then
	if images | grep -v '@sha256:'; then
		echo "these images have no digest: run tools/pin-images.sh" >&2
		exit 1
	fi
	exit 0
fi

digest() {
	if command -v crane >/dev/null; then
		crane digest "$1"
	else
		docker buildx imagetools inspect "$1" --format '{{.Manifest.Digest}}'
	fi
}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
images | cut -d' ' -f2 | sort -u | while read -r image; do
	tagged=${image%@*}
	found=$(digest "$tagged" </dev/null)
	[[ $found =~ ^sha256:[0-9a-f]{64}$ ]] || {
		echo "$tagged: the registry gave no digest: $found" >&2
		exit 1
	}
	printf '%s\t%s@%s\n' "$image" "$tagged" "$found" >>"$tmp/pins"
done

while IFS=$'\t' read -r image pinned; do
	for file in "${files[@]}"; do
		awk -v old="$image" -v new="$pinned" '{
			at = index($0, old); rest = substr($0, at + length(old), 1)
			if (at && (rest == "" || rest == " ")) $0 = substr($0, 1, at - 1) new substr($0, at + length(old))
			print
		}' "$file" >"$tmp/file"
		cat "$tmp/file" >"$file"
	done
	echo "$pinned"
done <"$tmp/pins"
