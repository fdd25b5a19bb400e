#!/usr/bin/env bash
#
# Writes the code in src/ringfence/app/v1 and src/ringfence/lane/v1, and its types, from the files of the same names in proto. protoc 25 is used on purpose: the code of later ones refuses
# runtimes of protobuf that are two major versions newer, and that of 25 has no such bound.
#
# Usage: ./generate.sh            writes the files
#        ./generate.sh --check    fails if they are not up to date

set -euo pipefail
cd "$(dirname "$0")"

tools=grpcio-tools==1.62.3
venv=build/generate
if [ ! -e "$venv/$tools" ]; then
	python3 -m venv --clear "$venv"
	"$venv/bin/pip" install --quiet --disable-pip-version-check "$tools" 'setuptools<81'
	touch "$venv/$tools"
fi

out=src
if [ "${1-}" = --check ]; then
	out=build/generated
	rm -rf "$out"
	mkdir -p "$out"
fi
"$venv/bin/python" -W ignore -m grpc_tools.protoc -I ../../proto --python_out="$out" --pyi_out="$out" ringfence/app/v1/app.proto ringfence/lane/v1/lane.proto

if [ "${1-}" = --check ]; then
	for file in app/v1/app_pb2.py app/v1/app_pb2.pyi lane/v1/lane_pb2.py lane/v1/lane_pb2.pyi; do
		cmp -s "$out/ringfence/$file" "src/ringfence/$file" || {
			echo "src/ringfence/$file is not up to date: run sdk/python/generate.sh and commit what changes" >&2
			exit 1
		}
	done
fi
