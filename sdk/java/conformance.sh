#!/usr/bin/env bash
#
# Checks the SDK against the rules of docs/sdk-protocol.md. It builds what is missing: the router from this repository, unless ROUTER names one, and the
# conformance worker.
#
# Usage: sdk/java/conformance.sh [FLAGS OF router conformance]
#   JAVA       the java that runs the worker (default java)
#   PARALLEL   scenes side by side (default 6): a JVM that starts needs a processor for half a second

set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
java=${JAVA:-java}
mkdir -p build
if [ -z "${ROUTER:-}" ]; then
	ROUTER=$here/build/router
	(cd ../.. && go build -o "$ROUTER" ./cmd/router)
fi
if [ ! -f conformance/target/classpath ]; then
	mvn -q -B -Dmaven.repo.local="${MAVEN_REPO_LOCAL:-$here/build/m2}" -pl conformance -am -DskipTests -Dmaven.javadoc.skip=true -Dmaven.source.skip=true package
fi
worker=("$java" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto)

# About thirty JVMs start: an archive of the loaded classes halves their time. One rule fills it; it is made anew for another java or build.
classpath=$(ls "$here"/conformance/target/ringfence-conformance-*.jar):$(cat conformance/target/classpath)
of=$({ "$java" -version 2>&1; tr ':' '\n' <<<"$classpath" | xargs stat -c '%n %Y %s'; } | cksum | cut -d' ' -f1)
archive=$here/build/conformance-$of.jsa
if [ ! -f "$archive" ]; then
	rm -f "$here"/build/conformance-*.jsa
	"$ROUTER" conformance --only drain --patience 5m -- "${worker[@]}" -XX:ArchiveClassesAtExit="$archive" -cp "$classpath" io.ringfence.conformance.ConformanceWorker \
		>build/archive.log 2>&1 || true # without an archive it is slower, that is all
fi
[ ! -f "$archive" ] || worker+=(-XX:SharedArchiveFile="$archive")

# On a busy machine a start takes longer than the 10 s that the command waits by default.
exec "$ROUTER" conformance --patience 180s --parallel "${PARALLEL:-6}" "$@" -- "${worker[@]}" -cp "$classpath" io.ringfence.conformance.ConformanceWorker
