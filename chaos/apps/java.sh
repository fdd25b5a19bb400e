#!/usr/bin/env bash
#
# The application of the fault tests on the Java SDK; with the argument prepare, what it needs.

set -euo pipefail
cd "$(dirname "$0")"
sdk=$(cd ../../sdk/java && pwd)
build=$sdk/build/chaos
if [ "${1:-}" = prepare ]; then
	mkdir -p "$build"
	(cd "$sdk" && mvn -q -B -Dmaven.repo.local="${MAVEN_REPO_LOCAL:-$sdk/build/m2}" -pl conformance -am -DskipTests -Dmaven.javadoc.skip=true -Dmaven.source.skip=true package)
	javac -cp "$(cat "$sdk/conformance/target/classpath")" -d "$build" App.java
	exit
fi
exec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xmx256m -cp "$build:$(cat "$sdk/conformance/target/classpath")" App
