#!/usr/bin/env bash
#
# Tries the SDKs as new users would: in an empty folder, with an empty home and a PATH that has the language, a shell's usual tools and the router, it does what the
# first page of sdk/LANGUAGE/README.md says, with the packages as they are built, and says how long that took. The registry is a folder, or for npm a server on
# loopback, that has the built package; other packages come from where the machine has them from, and were fetched before.
#
# Usage: tools/first-handler.sh [python] [typescript] [java]    all without arguments; ROUTER names a built router

set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
[ "$#" -gt 0 ] || set -- python typescript java
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
version=0.0.0-first # the router says it, and npm wants it
if [ -z "${ROUTER:-}" ]; then
	ROUTER=$work/router
	go build -o "$ROUTER" ./cmd/router
fi

# The environment of the new user, as NAME=VALUE: registries and their certificates are the machine's.
environment=()
while IFS= read -r name; do
	environment+=("$name=${!name}")
done < <(compgen -e | grep -iE '^(npm_config_.*|pip_cert|ssl_cert_file|node_extra_ca_certs|https?_proxy|no_proxy|java_tool_options)$' || true)

# link NAME TARGET puts a program into the new user's PATH.
link() { ln -sf "$2" "$work/bin/$1"; }

prepare_python() {
	local python
	python=$(python3 -c 'import sys; print(sys._base_executable)')
	link python3 "$(readlink -f "$python")"
	RINGFENCE_VERSION=0.0.1 sdk/python/build.sh
	"$python" -m venv "$work/fetch"
	"$work/fetch/bin/pip" download --quiet --disable-pip-version-check --dest "$work/wheels" sdk/python/build/dist/ringfence-0.0.1-*.whl
	environment+=(PIP_NO_INDEX=1 "PIP_FIND_LINKS=$work/wheels" PIP_DISABLE_PIP_VERSION_CHECK=1)
}

prepare_typescript() {
	link node "$(readlink -f "$(command -v node)")"
	link npm "$(readlink -f "$(command -v npm)")"
	sdk/typescript/scripts/setup.sh
	RINGFENCE_VERSION=$version node sdk/typescript/scripts/package.mjs >/dev/null
	# A registry of one package.
	node --input-type=module - "$PWD/sdk/typescript/build" "$version" "$work/port" >"$work/registry.log" 2>&1 <<-'END' &
		import { createHash } from "node:crypto";
		import { readFileSync, renameSync, writeFileSync } from "node:fs";
		import { createServer } from "node:http";
		const [build, version, portFile] = process.argv.slice(2);
		const archive = readFileSync(`${build}/ringfence-client-${version}.tgz`);
		const integrity = "sha512-" + createHash("sha512").update(archive).digest("base64");
		const manifest = JSON.parse(readFileSync(`${build}/package/package.json`, "utf8"));
		const server = createServer((request, response) => {
		  if (request.url.endsWith(".tgz")) return response.end(archive);
		  const dist = { tarball: `http://${request.headers.host}/client.tgz`, integrity };
		  response.end(JSON.stringify({ name: manifest.name, "dist-tags": { latest: version }, versions: { [version]: { ...manifest, dist } } }));
		}).listen(0, "127.0.0.1", () => {
		  writeFileSync(`${portFile}.new`, String(server.address().port));
		  renameSync(`${portFile}.new`, portFile);
		});
	END
	server=$!
	while [ ! -e "$work/port" ]; do
		kill -0 "$server" 2>/dev/null || { cat "$work/registry.log" >&2; exit 1; }
		sleep 0.1
	done
	environment+=("npm_config_cache=$work/npm" npm_config_prefer_offline=true npm_config_update_notifier=false)
	mkdir -p "$work/fetch" # fills the cache
	(cd "$work/fetch" && npm_config_cache=$work/npm npm install --silent --no-audit --no-fund "$root/sdk/typescript/build/ringfence-client-$version.tgz")
	echo "@ringfence:registry=http://127.0.0.1:$(cat "$work/port")/" >"$work/home/.npmrc"
}

prepare_java() {
	local program repository=${MAVEN_REPO_LOCAL:-${XDG_CACHE_HOME:-$HOME/.cache}/ringfence/m2}
	for program in java javac mvn; do link "$program" "$(readlink -f "$(command -v "$program")")"; done
	mkdir -p "$repository" "$work/home/.m2"
	# A registry that falls silent in mid-answer costs a minute, as in tools/sdks.sh.
	local silent="-Dmaven.wagon.rto=60000 -Daether.connector.requestTimeout=60000"
	# Parents of plugins name repositories that answer no more, and Maven waits for each: all comes from Central, unless the machine has settings of its own.
	if [ -e "$HOME/.m2/settings.xml" ]; then
		cp "$HOME/.m2/settings.xml" "$work/home/.m2/"
	else # the mirror is named central, so that Maven takes what it has fetched without the mirror for its own, and the other way round
		echo '<settings><mirrors><mirror><id>central</id><mirrorOf>*</mirrorOf><url>https://repo.maven.apache.org/maven2</url></mirror></mirrors></settings>' \
			>"$work/home/.m2/settings.xml"
	fi
	MAVEN_OPTS="$silent -Duser.home=$work/home" mvn -q -B "-Dmaven.repo.local=$repository" -f sdk/java -pl client -am -DskipTests install
	version=$(sed -n 's:.*<version>\(.*\)</version>.*:\1:p' sdk/java/client/.flattened-pom.xml | head -1)
	mkdir -p "$work/fetch" # fills the repository
	commands_of java "$work/fetch"
	(
		cd "$work/fetch"
		sed '/^router /d' commands >fetch
		for _ in 1 2 3; do MAVEN_OPTS="$silent -Duser.home=$work/home -Dmaven.repo.local=$repository" sh -e fetch && break; done
	)
	cp -al "$repository" "$work/home/.m2/repository" 2>/dev/null || cp -R "$repository" "$work/home/.m2/repository"
	environment+=("MAVEN_OPTS=-Duser.home=$work/home") # Java does not ask HOME
}

# commands_of LANGUAGE FOLDER writes the files of the first page there, and its shell commands into the file commands.
commands_of() {
	awk -v folder="$2" '
		/^## / { sections += done; done = done || /A first handler/ }
		sections { exit }
		/^<!-- file: .* -->$/ { file = folder "/" $3; sub("[^/]*$", "", file); system("mkdir -p " file); file = folder "/" $3; next }
		/^```sh$/ { file = folder "/commands"; writing = 1; next }
		/^```[a-z]+$/ && file != "" { writing = 1; next }
		/^```$/ { writing = 0; file = ""; next }
		writing { print >>file }
	' "sdk/$1/README.md"
	! grep -rl VERSION "$2" >/dev/null || sed -i "s/VERSION/$version/" "$2/pom.xml"
}

for language in "$@"; do
	rm -rf "$work/bin" "$work/home" "$work/app" "$work/fetch"
	mkdir -p "$work/bin" "$work/home" "$work/app"
	base=("${environment[@]+"${environment[@]}"}")
	"prepare_$language"
	for program in sh cat ls mkdir rm cp mv sed grep uname dirname basename tr head readlink expr which id; do link "$program" "$(command -v "$program")"; done
	link router "$(readlink -f "$ROUTER")"
	commands_of "$language" "$work/app"
	begin=$(date +%s%N)
	(cd "$work/app" && "$root/tools/limited.sh" 900 env -i "PATH=$work/bin" "HOME=$work/home" "TMPDIR=$work/home" LANG=C.UTF-8 "${environment[@]+"${environment[@]}"}" sh -ex commands 2>&1) |
		while IFS= read -r line; do
			printf '%6.1f %s\n' "$(($(date +%s%N) - begin))e-9" "$line"
		done >"$work/output" || { echo "sdk/$language/README.md as a new user:" >&2; cat "$work/output" >&2; exit 1; }
	if ! grep -q 'dev .*| 20 done, 0 dead-lettered, 0 pending' "$work/output"; then
		echo "sdk/$language/README.md as a new user: its handler did not handle 20 events:" >&2
		cat "$work/output" >&2
		exit 1
	fi
	awk -v language="$language" '
		/ \+ router dev/ { installed = $1 }
		/ app-[0-9]+ +\| user-[0-9]+: / && first == "" { first = $1 }
		{ last = $1 }
		END { if (first == "") exit 1; printf "%s: installed after %.0f s, the first event handled after %.0f s, all of 20 after %.0f s\n", language, installed, first, last }' "$work/output"
	environment=("${base[@]+"${base[@]}"}")
	if [ -n "$server" ]; then
		kill "$server"
		server=
	fi
done
