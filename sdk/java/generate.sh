#!/usr/bin/env bash
#
# Generates the protobuf code of the package, which is committed, from proto/ringfence/app/v1/app.proto and proto/ringfence/lane/v1/lane.proto.
#
# Usage: sdk/java/generate.sh [--check]    --check compares instead, and fails if the committed code is not up to date

set -euo pipefail
cd "$(dirname "$0")"
target=client/src/main/java/io/ringfence/client/proto
protobuf=$(sed -n 's:.*<protobuf.version>\(.*\)</protobuf.version>.*:\1:p' pom.xml)
grpc=$(sed -n 's:.*<grpc.version>\(.*\)</grpc.version>.*:\1:p' pom.xml)
case "$(uname -s)-$(uname -m)" in
Linux-x86_64) platform=linux-x86_64 ;;
Linux-aarch64) platform=linux-aarch_64 ;;
Darwin-*) platform=osx-x86_64 ;;
*) echo "no protoc for $(uname -sm): run this on Linux or macOS" >&2; exit 1 ;;
esac

tools=build/protoc
protoc=$tools/protoc-$protobuf-$platform.exe
plugin=$tools/protoc-gen-grpc-java-$grpc-$platform.exe
for artifact in "com.google.protobuf:protoc:$protobuf" "io.grpc:protoc-gen-grpc-java:$grpc"; do
	file=$tools/$(echo "$artifact" | cut -d: -f2)-$(echo "$artifact" | cut -d: -f3)-$platform.exe
	[ -f "$file" ] || mvn -q -N -Dmaven.repo.local="${MAVEN_REPO_LOCAL:-$PWD/build/m2}" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
		-Dartifact="$artifact:exe:$platform" -DoutputDirectory="$PWD/$tools" -Dmdep.useBaseVersion=true
done
chmod +x "$protoc" "$plugin"

# The proto files serve all languages: Java's options are added to copies.
rm -rf build/proto build/generated
mkdir -p build/proto/ringfence/app/v1 build/proto/ringfence/lane/v1 build/generated
for file in app/v1/app.proto lane/v1/lane.proto; do
	sed 's:^package .*;:&\noption java_package = "io.ringfence.client.proto";\noption java_multiple_files = true;:' \
		"../../proto/ringfence/$file" >"build/proto/ringfence/$file"
done
"$protoc" -I build/proto --plugin=protoc-gen-grpc-java="$plugin" --java_out=build/generated --grpc-java_out=@generated=omit:build/generated ringfence/app/v1/app.proto ringfence/lane/v1/lane.proto
find build/generated -name '*.java' -exec sed -i 's/[[:space:]]*$//' {} +

if [ "${1:-}" = --check ]; then
	if ! diff -rq build/generated/io/ringfence/client/proto "$target" >&2; then
		echo "the generated code is not up to date: run sdk/java/generate.sh and commit the result" >&2
		exit 1
	fi
	exit 0
fi
rm -rf "$target"
cp -r build/generated/io/ringfence/client/proto "$target"
