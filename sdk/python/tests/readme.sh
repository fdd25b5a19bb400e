#!/usr/bin/env bash
#
# Tries the package as README.md says, in an environment that has only the built wheel and pytest: its files are written out as they stand there, the
# handler runs beside three members, and the tests run. The Python of the documents and of the repository's README runs, too. All of it has right types.
#
# Usage: tests/readme.sh ROUTER    with build/dist built, and a router

set -euo pipefail
cd "$(dirname "$0")/.."
router=$1
limited=$PWD/../../tools/limited.sh

clean=$PWD/build/clean
work=$PWD/build/readme
if [ ! -e "$clean/ready" ]; then
	python3 -m venv --clear "$clean"
	"$clean/bin/pip" install --quiet --disable-pip-version-check pytest "$(ls build/dist/ringfence-*.whl)"
	touch "$clean/ready"
fi
"$clean/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall build/dist/ringfence-*.whl

rm -rf "$work"
mkdir -p "$work"
awk -v folder="$work" '
	/^<!-- file: .* -->$/ { file = folder "/" $3; next }
	/^```python$/ && file != "" { writing = 1; next }
	/^```$/ && writing { writing = 0; file = ""; next }
	writing { print >file }
' README.md

# Each block of the documents is a program, with the functions that they leave to their readers.
cat >"$work/names.py" <<'END'
import ringfence


def on_event(event: ringfence.Event) -> None:
    print(f"{event.key_text} (attempt {event.attempt})\n", end="")


def report(firing: ringfence.Firing) -> None: ...


def sweep(firing: ringfence.Firing) -> None: ...
END
awk -v folder="$work" '
	/^```python$/ { file = folder "/page" ++n ".py"; print "from names import *  # " FILENAME >file; next }
	/^```$/ { file = "" }
	file != "" { print >file }
' ../../docs/*.md ../../README.md
{
	echo 'import ringfence, types'
	echo 'store = types.SimpleNamespace(apply=lambda key, fence, payload: print(f" events, fence {fence}"))'
	sed -n 's/^| \[Python\][^`]*`\([^`]*\)`.*/\1/p' ../../README.md
} >"$work/line.py"

# The tests of the source distribution run beside the package, whose entry point has registered the fixture.
mkdir "$work/source"
tar -xzf build/dist/ringfence-*.tar.gz -C "$work/source" --strip-components=1

cd "$work"
unset PYTHONPATH
lines=$(awk '/^def handle/ { counting = 1 } /^if __name__/ { counting = 0 } counting && NF { n++ } END { print n }' handler.py)
[ "$lines" -le 10 ] || { echo "the first handler has $lines lines, want at most ten" >&2; exit 1; }
../venv/bin/python -m mypy --config-file= --python-executable "$clean/bin/python" --strict --allow-untyped-defs -- *.py >types.log || { cat types.log >&2; exit 1; }
"$clean/bin/python" -W error -m pytest -q -p no:cacheprovider --ignore=source . >tests.log 2>&1 || { cat tests.log >&2; exit 1; }
(cd source && "$clean/bin/python" -m pytest -p no:cacheprovider tests/test_readme.py tests/test_version.py) >source.log 2>&1 || { cat source.log >&2; exit 1; }
# handles PROGRAM PATTERN: whether it handles all of 20 events, and writes the pattern for each
handles() {
	"$limited" 600 "$router" dev --rate 100 --events 20 -- "$clean/bin/python" "$1" >"$1.log" 2>&1 || { cat "$1.log" >&2; exit 1; }
	local handled
	handled=$(grep -o "$2" "$1.log" | wc -l) # threads print: two lines may be one
	[ "$handled" = 20 ] || { cat "$1.log" >&2; echo "$1 handled $handled of 20 events" >&2; exit 1; }
}
handles handler.py ' events, fence [0-9]\{19\}\.[0-9]\{20\}'
handles line.py ' events, fence [0-9]\{19\}\.[0-9]\{20\}'
for page in page*.py; do handles "$page" '(attempt 1)'; done
sed 's/wait=30, /wait=30, ttl=30, /' total.py >ttl.py
grep -q ttl=30 ttl.py
for program in total.py ttl.py; do
	rm -f total
	handles "$program" 'total [0-9]*, fence [0-9]\{19\}\.[0-9]\{20\}'
	[ "$(cat total)" = 20 ] || { cat "$program.log" >&2; echo "the reserved key was held twice at once: the total is $(cat total) after 20 events" >&2; exit 1; }
done
