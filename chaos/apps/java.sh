#!/usr/bin/env bash
#
# The application of the fault tests on the Java SDK; with the argument prepare, what it needs.

set -euo pipefail
cd "$(dirname "$0")"
sdk=$(cd ../../sdk/java && pwd)
build=$sdk/build/chaos
if [ "${1:-}" = prepare ]; then
	"$sdk/build.sh" client
	mkdir -p "$build"
	javac -cp "$(cat "$sdk/build/client.classpath")" -d "$build" App.java
	exit
fi
exec java -XX:TieredStopAtLevel=1 -Xmx256m -cp "$build:$(cat "$sdk/build/client.classpath")" App
