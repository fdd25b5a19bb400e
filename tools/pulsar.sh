#!/usr/bin/env bash
#
# A real Pulsar broker for tests, on any machine that can have one.
#
#   tools/pulsar.sh run   [options] -- CMD...   start, run CMD with PULSAR_URL, PULSAR_ADMIN_URL and PULSAR_HANDLE set, stop
#   tools/pulsar.sh start [options]             start; print PULSAR_URL=, PULSAR_ADMIN_URL= and PULSAR_HANDLE= lines
#   tools/pulsar.sh stop  [HANDLE]              stop it and remove its data (default: $PULSAR_HANDLE)
#   tools/pulsar.sh restart [HANDLE]            kill it (SIGKILL) and start it again on the same data and ports
#   tools/pulsar.sh env   [HANDLE]              print the same three lines again, as shell exports
#   tools/pulsar.sh home                        print the folder of the Pulsar distribution (bin/pulsar-perf lives there)
#   tools/pulsar.sh find                        print where a broker would come from: url, docker or dist
#
# Options:
#   --set KEY=VALUE     a broker setting, repeatable; implies --own
#   --own               start a new broker even if PULSAR_URL is set
#   --advertise HOST    the address that the broker tells its clients (default 127.0.0.1; any other one
#                       makes it listen on all interfaces)
#   --secure DIR        a broker that lets nobody in without TLS and a token; implies --own. DIR has ca.pem, cert.pem
#                       and key.pem (for the advertised address), token-key (the secret that signs tokens) and token
#                       (of the role admin, who may do everything). Clients are told pulsar+ssl:// and https:// addresses
#   --optional          (run) where no broker can be had, say so in one line and run CMD without one;
#                       with CI=true this is a failure all the same
#
# A broker comes from the first of these that is there:
#   1. PULSAR_URL (and PULSAR_ADMIN_URL): somebody else's broker, used as it is and never stopped
#   2. a docker engine that answers
#   3. the distribution on Maven Central, with Java >= 17 (and, the first time, Maven)
#
# Each broker has free ports and a data folder of its own, so several can run at once. A broker of "run"
# also goes when this script is killed. For a broker that lives as long as a program's pipe:
#   tools/pulsar.sh run -- sh -c 'echo "$PULSAR_URL $PULSAR_ADMIN_URL"; cat >/dev/null'
#
# Environment: PULSAR_MEM (JVM memory), RINGFENCE_PULSAR_FROM=docker|dist (skip the other),
# RINGFENCE_PULSAR_VERSION (default 4.0.8; 3.3.6, 4.0.6, what tools/pulsar-jars.sh has made, or with docker any),
# RINGFENCE_PULSAR_WAIT (seconds to become healthy, default 120), XDG_CACHE_HOME.
#
# Exit codes: 0 fine, 1 failed, 2 wrong usage, 69 no broker can be had here; "run" gives CMD's own code.

set -euo pipefail

readonly VERSION=${RINGFENCE_PULSAR_VERSION:-4.0.8}
readonly IMAGE="apachepulsar/pulsar:$VERSION"
readonly ARTIFACT="org.apache.pulsar:pulsar-server-distribution:$VERSION:tar.gz:bin"
readonly TARBALL="pulsar-server-distribution-$VERSION-bin.tar.gz"
case $VERSION in
4.0.8) readonly SHA512=65b769b10696cdfebf7fc5bcdc95dd663702e27051e616c1a13cb100e91279525be35352171befe7b0011176330aab29bd0a6c8a0f2f0646641af46d2e33cbd6 ;;
3.3.6) readonly SHA512=c8a91ebea6fdf8528ec1c00b073bfe40ac54531302536feeb3027796364f0ee96ff71ddbdbfdb30b036fad8953a1e792b2ec1e348b00f7d4f6b75f1f75e519c0 ;;
4.0.6) readonly SHA512=ac174f604e94473215e07024d05853dbf24bf1520ec222c8bb0d87707a5f126749df7d5733e06a2423456421489ed371e122f4f5a7793a5146a5a1b47f437e90 ;;
*) readonly SHA512= ;; # docker only, since nobody has noted what Central's file must be
esac
readonly MAVEN_PLUGIN=org.apache.maven.plugins:maven-dependency-plugin:3.8.1

readonly UNAVAILABLE=69

: "${PULSAR_MEM:=-Xms512m -Xmx2g -XX:MaxDirectMemorySize=2g}"

say() { printf 'pulsar.sh: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
misuse() { say "$*"; say "usage: see the head of $0"; exit 2; }
have() { command -v "$1" >/dev/null 2>&1; }

# --- where a broker can come from ------------------------------------------------------------------

cache_dir() {
	printf '%s/ringfence/pulsar-%s\n' "${XDG_CACHE_HOME:-${HOME:?neither XDG_CACHE_HOME nor HOME is set}/.cache}" "$VERSION"
}

# cached says whether the distribution is there and whole: the marker is written last and holds the
# number of jars, which catches a cleaner that took some of them.
cached() {
	local dir jars
	dir=$(cache_dir)
	[ -r "$dir/.complete" ] || return 1
	jars=("$dir"/lib/*.jar)
	[ "${#jars[@]}" = "$(cat "$dir/.complete")" ]
}

java_bin() {
	if [ -n "${JAVA_HOME:-}" ]; then printf '%s/bin/java\n' "$JAVA_HOME"; else printf 'java\n'; fi
}

# java_major prints the major version of the Java in use, or nothing.
java_major() {
	local line
	line=$("$(java_bin)" -version 2>&1 | grep -m1 'version "' || true)
	[[ $line =~ \"(1\.)?([0-9]+) ]] && printf '%s\n' "${BASH_REMATCH[2]}"
	return 0
}

# find_kind prints url, docker or dist. Otherwise it prints nothing, leaves the reason in WHY and fails.
WHY=
KIND=
find_kind() {
	local own=$1 major
	WHY=
	if [ -n "${PULSAR_URL:-}" ] && [ "$own" = no ]; then
		KIND=url
		return 0
	fi
	case ${RINGFENCE_PULSAR_FROM:-any} in any | docker | dist) ;; *) misuse "RINGFENCE_PULSAR_FROM is neither docker nor dist" ;; esac
	if [ "${RINGFENCE_PULSAR_FROM:-docker}" = docker ]; then
		if have docker && docker info >/dev/null 2>&1; then
			KIND=docker
			return 0
		fi
		WHY="no docker engine answers"
	fi
	if [ "${RINGFENCE_PULSAR_FROM:-dist}" = dist ]; then
		major=$(java_major)
		if [ -z "$major" ]; then
			WHY="${WHY:+$WHY, }there is no Java"
		elif [ "$major" -lt 17 ]; then
			WHY="${WHY:+$WHY, }Java is $major and Pulsar needs 17"
		elif cached; then
			KIND=dist
			return 0
		elif [ -z "$SHA512" ]; then
			WHY="${WHY:+$WHY, }the checksum of Pulsar $VERSION is not in tools/pulsar.sh"
		elif ! have mvn; then
			WHY="${WHY:+$WHY, }there is no Maven to fetch Pulsar with"
		else
			KIND=dist
			return 0
		fi
	fi
	return 1
}

sha512_of() {
	if have sha512sum; then sha512sum "$1"; else shasum -a 512 "$1"; fi | cut -d' ' -f1
}

# fetch puts the distribution into the cache, once. It checks each step itself, as "set -e" is off inside
# a condition, which is where it is called. The rename at the end makes it appear whole or not
# at all, so two that fetch at the same time only waste one download.
fetch() {
	cached && return 0
	local dir parent tmp log jars
	dir=$(cache_dir)
	parent=$(dirname "$dir")
	mkdir -p "$parent" || die "cannot make $parent"
	tmp=$(mktemp -d "$parent/.fetch.XXXXXX") || die "cannot write to $parent"
	log=$tmp/mvn.log
	say "fetching Pulsar $VERSION (245 MB) into $dir, once"
	if ! download "$tmp" "$log"; then
		grep -m3 '^\[ERROR\]' "$log" >&2 || tail -n 3 "$log" >&2
		rm -rf "$tmp"
		WHY="Maven could not fetch Pulsar"
		return 1
	fi
	if [ "$(sha512_of "$tmp/$TARBALL")" != "$SHA512" ]; then
		rm -rf "$tmp"
		die "the fetched $TARBALL is not the one that was released: its SHA-512 differs"
	fi
	if ! mkdir "$tmp/tree" || ! tar -xzf "$tmp/$TARBALL" -C "$tmp/tree" --strip-components=1; then
		rm -rf "$tmp"
		die "cannot unpack $TARBALL"
	fi
	jars=("$tmp"/tree/lib/*.jar)
	printf '%s\n' "${#jars[@]}" >"$tmp/tree/.complete"
	if ! cached; then
		rm -rf "$dir"
		mv "$tmp/tree" "$dir" 2>/dev/null || cached || die "cannot move Pulsar into $dir"
	fi
	rm -rf "$tmp"
}

# download asks Central alone: the parent of the distribution names repositories that are long gone.
# Our settings take the place of the global ones, so a mirror in the user's own settings still wins; and
# if that fails, the machine's settings are tried as they are.
download() {
	local tmp=$1 log=$2 try
	cat >"$tmp/settings.xml" <<'XML'
<settings>
  <mirrors>
    <mirror>
      <id>central-for-all</id>
      <mirrorOf>*</mirrorOf>
      <url>https://repo.maven.apache.org/maven2</url>
    </mirror>
  </mirrors>
</settings>
XML
	for try in ours machine; do
		local settings=()
		[ "$try" = ours ] && settings=(-gs "$tmp/settings.xml")
		mvn -B -C -Dstyle.color=never "${settings[@]+"${settings[@]}"}" -Dmaven.repo.local="$tmp/repo" "$MAVEN_PLUGIN:copy" \
			-Dartifact="$ARTIFACT" -DoutputDirectory="$tmp" </dev/null >>"$log" 2>&1 && return 0
	done
	return 1
}

# --- one broker ------------------------------------------------------------------------------------
#
# A broker's handle is a folder of its own: settings, data, logs, temporary files, and
#   kind       docker or dist
#   pid        the process (dist)
#   container  its name (docker)
#   url, admin what clients need

answers() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# free_ports prints $1 different ports that nobody listens on. They are below the range from which
# kernels take ports for outgoing connections, so that nothing takes them before the broker does; if
# something does, start_broker tries others.
free_ports() {
	local want=$1 seen=' ' port
	while [ "$want" -gt 0 ]; do
		port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
		case $seen in *" $port "*) continue ;; esac
		answers 127.0.0.1 "$port" && continue
		seen="$seen$port "
		want=$((want - 1))
		printf '%s\n' "$port"
	done
}

# http_get prints the answer (head and body) to a GET, with the TOKEN if there is one. It needs nothing but bash.
TOKEN=
http_get() {
	(
		exec 3<>"/dev/tcp/$1/$2" || exit 1
		printf 'GET %s HTTP/1.0\r\nHost: %s:%s\r\nAccept: */*\r\n%s\r\n' "$3" "$1" "$2" "${TOKEN:+Authorization: Bearer $TOKEN$'\r\n'}" >&3
		answer=
		IFS= read -r -t 10 -d '' answer <&3 || true
		printf '%s' "$answer"
	) 2>/dev/null
}

# healthy: the broker wrote to and read from a topic of its own, and the default namespace exists.
healthy() {
	case $(http_get "$1" "$2" /admin/v2/brokers/health) in HTTP/1.?\ 200\ *) ;; *) return 1 ;; esac
	case $(http_get "$1" "$2" /admin/v2/namespaces/public) in *public/default*) return 0 ;; esac
	return 1
}

# secure_settings are those of a broker that lets nobody in without a token. Its two ports in the clear stay, on
# this machine, for the question whether it is healthy.
secure_settings() {
	local dir=$1 broker=$2 web=$3
	cat <<-SETTINGS
		brokerServicePortTls=$broker
		webServicePortTls=$web
		tlsCertificateFilePath=$dir/cert.pem
		tlsKeyFilePath=$dir/key.pem
		tlsTrustCertsFilePath=$dir/ca.pem
		authenticationEnabled=true
		authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken
		tokenSecretKey=file://$dir/token-key
		authorizationEnabled=true
		superUserRoles=admin
		brokerClientTlsEnabled=true
		brokerClientTrustCertsFilePath=$dir/ca.pem
		brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
		brokerClientAuthenticationParameters=file://$dir/token
	SETTINGS
}

# The broker's settings are the stock ones with ours in their place. A key that stands twice would be
# read as a list by the bookie, so the old line has to go.
# shellcheck disable=SC2016 # it is awk's
readonly MERGE='
	BEGIN { while ((getline line < overrides) > 0) { split(line, kv, "="); ours[kv[1]] = 1; tail = tail line "\n" } }
	{ key = $0; sub(/=.*/, "", key); if (!(key in ours)) print }
	END { printf "%s", tail }'

# process_alive: the process is there and is still this broker, not another one with its number.
process_alive() {
	local handle=$1 pid command= state i
	pid=$(cat "$handle/pid" 2>/dev/null) || return 1
	[ -n "$pid" ] || return 1
	if [ -d /proc/self ]; then
		# The line of a process is empty for a moment whenever it starts a program in its place, and of a dead one for good.
		for i in $(seq 1 100); do
			command=$({ tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null) || return 1
			[ -z "$command" ] || break
			state=$(awk '/^State:/ { print $2 }' "/proc/$pid/status" 2>/dev/null) || return 1
			case $state in Z | X | '') return 1 ;; esac
			sleep 0.01
		done
	else
		command=$(ps -p "$pid" -o command= 2>/dev/null) || return 1
	fi
	case $command in *"$handle"*) return 0 ;; esac
	return 1
}

broker_alive() {
	local handle=$1
	case $(cat "$handle/kind") in
	docker) [ "$(docker inspect -f '{{.State.Running}}' "$(cat "$handle/container")" 2>/dev/null)" = true ] ;;
	dist) process_alive "$handle" ;;
	esac
}

broker_log() {
	local handle=$1
	case $(cat "$handle/kind") in
	docker) docker logs "$(cat "$handle/container")" 2>&1 || true ;;
	dist) cat "$handle/logs/broker.log" 2>/dev/null || true ;;
	esac
}

# end_broker ends the process at once: its data is thrown away, so there is nothing to save.
end_broker() {
	local handle=$1 i
	case $(cat "$handle/kind" 2>/dev/null) in
	docker)
		docker rm -f -v "$(cat "$handle/container")" >/dev/null 2>&1 || true
		;;
	dist)
		for i in $(seq 1 200); do
			process_alive "$handle" || break
			if [ $((i % 50)) = 1 ]; then kill -KILL "$(cat "$handle/pid")" 2>/dev/null || true; fi
			sleep 0.05
		done
		if process_alive "$handle"; then die "process $(cat "$handle/pid") does not end"; fi
		;;
	esac
	return 0
}

stop_broker() {
	local handle=$1
	[ -d "$handle" ] || return 0
	[ -e "$handle/.ringfence-pulsar" ] || die "$handle is not a broker of ours"
	end_broker "$handle"
	rm -rf "$handle"
}

launch_dist() {
	local handle=$1 advertise=$2 bookie=$3 home
	home=$(cache_dir)
	mkdir -p "$handle/logs" "$handle/tmp" "$handle/data"
	awk -v overrides="$handle/overrides" "$MERGE" "$home/conf/standalone.conf" >"$handle/standalone.conf"
	# A process group of its own keeps a Ctrl-C at the terminal away from the broker: it goes when we say so.
	(
		set -m
		cd "$handle"
		unset PULSAR_STANDALONE_USE_ZOOKEEPER
		PULSAR_STANDALONE_CONF="$handle/standalone.conf" PULSAR_LOG_DIR="$handle/logs" PULSAR_MEM="$PULSAR_MEM" \
			PULSAR_EXTRA_OPTS="-Djava.io.tmpdir=$handle/tmp ${PULSAR_EXTRA_OPTS:--Dpulsar.allocator.exit_on_oom=true -Dio.netty.recycler.maxCapacityPerThread=4096}" \
			nohup "$home/bin/pulsar" standalone -nss -nfw --advertised-address "$advertise" --bookkeeper-port "$bookie" \
			--metadata-dir "$handle/data/metadata" --bookkeeper-dir "$handle/data/bookkeeper" \
			</dev/null >>"$handle/logs/broker.log" 2>&1 9>&- &
		printf '%s\n' "$!" >"$handle/pid"
	)
	# Until it has become nohup, the new process looks like this script and not like a broker.
	local i
	for i in $(seq 1 40); do
		process_alive "$handle" && break
		sleep 0.05
	done
}

launch_docker() {
	local handle=$1 advertise=$2 bookie=$3 broker=$4 web=$5 name bind=
	name=$(basename "$handle")
	printf '%s\n' "$name" >"$handle/container"
	[ "$advertise" = 127.0.0.1 ] && bind=127.0.0.1:
	docker rm -f -v "$name" >/dev/null 2>&1 || true
	# shellcheck disable=SC2016 # expanded inside the container
	docker run -d --name "$name" -p "$bind$broker:$broker" -p "$bind$web:$web" \
		${SECURE:+-v "$SECURE:$SECURE:ro" -p "$bind$6:$6" -p "$bind$7:$7"} \
		-e PULSAR_MEM="$PULSAR_MEM" -e OVERRIDES="$(cat "$handle/overrides")" -e MERGE="$MERGE" \
		-e ADVERTISE="$advertise" -e BOOKIE="$bookie" -e PULSAR_STANDALONE_CONF=/tmp/standalone.conf \
		"$IMAGE" bash -c '
			printf "%s\n" "$OVERRIDES" >/tmp/overrides
			awk -v overrides=/tmp/overrides "$MERGE" conf/standalone.conf >/tmp/standalone.conf
			exec bin/pulsar standalone -nss -nfw --advertised-address "$ADVERTISE" --bookkeeper-port "$BOOKIE"
		' </dev/null >"$handle/docker.log" 2>&1 9>&-
}

# await_health waits until the broker works. 1: it ended or never worked. 3: another program has its port.
await_health() {
	local handle=$1 host=$2 web=$3 deadline=$((SECONDS + ${RINGFENCE_PULSAR_WAIT:-120}))
	while [ "$SECONDS" -lt "$deadline" ]; do
		healthy "$host" "$web" && return 0
		if ! broker_alive "$handle"; then
			broker_log "$handle" | grep -q -i -E 'address already in use|BindException|failed to bind' && return 3
			return 1
		fi
		sleep 0.25
	done
	say "it had ${RINGFENCE_PULSAR_WAIT:-120} s: RINGFENCE_PULSAR_WAIT gives it more, on a busy machine"
	return 1
}

# start_broker starts a broker in the empty handle folder and waits until it works.
start_broker() {
	local handle=$1 kind=$2 advertise=$3 try ports broker web bookie broker_tls web_tls bind=0.0.0.0 host=127.0.0.1 code=0
	shift 3
	printf '%s\n' "$kind" >"$handle/kind"
	[ -z "$TOKEN" ] || (umask 077 && printf '%s\n' "$TOKEN" >"$handle/token")
	if [ "$kind" = dist ] && [ "$advertise" = 127.0.0.1 ]; then bind=127.0.0.1; fi
	for try in 1 2 3; do
		# shellcheck disable=SC2207 # numbers only; mapfile is not in every bash
		ports=($(free_ports 5))
		broker=${ports[0]} web=${ports[1]} bookie=${ports[2]} broker_tls=${ports[3]} web_tls=${ports[4]}
		{
			# The bookie takes the port that it is given only if it may also take any port.
			printf '%s\n' "brokerServicePort=$broker" "webServicePort=$web" "bindAddress=$bind" allowEphemeralPorts=true
			[ -z "$SECURE" ] || secure_settings "$SECURE" "$broker_tls" "$web_tls"
			[ $# = 0 ] || printf '%s\n' "$@"
		} >"$handle/overrides"
		printf '%s\n' "$advertise $bookie $web" >"$handle/where"
		case $kind in
		dist) launch_dist "$handle" "$advertise" "$bookie" ;;
		docker)
			if ! launch_docker "$handle" "$advertise" "$bookie" "$broker" "$web" "$broker_tls" "$web_tls"; then
				cat "$handle/docker.log" >&2
				grep -q -i 'port is already allocated\|address already in use' "$handle/docker.log" && continue
				die "docker could not start $IMAGE"
			fi
			;;
		esac
		code=0
		await_health "$handle" "$host" "$web" || code=$?
		if [ "$code" = 0 ]; then
			if [ -n "$SECURE" ]; then
				printf 'pulsar+ssl://%s:%s\n' "$advertise" "$broker_tls" >"$handle/url"
				printf 'https://%s:%s\n' "$advertise" "$web_tls" >"$handle/admin"
			else
				printf 'pulsar://%s:%s\n' "$advertise" "$broker" >"$handle/url"
				printf 'http://%s:%s\n' "$advertise" "$web" >"$handle/admin"
			fi
			return 0
		fi
		[ "$code" = 3 ] || break
		say "a port was taken meanwhile, trying others ($try of 3)"
		end_broker "$handle"
		rm -rf "$handle/data"
	done
	broker_log "$handle" | tail -n 40 >&2
	die "the broker ($kind) did not become healthy"
}

# --- commands --------------------------------------------------------------------------------------

HANDLE=
ADVERTISE=127.0.0.1
OWN=no
SECURE=
OPTIONAL=no
SETTINGS=()
COMMAND=()

parse() {
	local takes_command=$1
	shift
	while [ $# -gt 0 ]; do
		case $1 in
		--set)
			case ${2-} in [A-Za-z]*=*) ;; *) misuse "--set wants KEY=VALUE, got '${2-}'" ;; esac
			SETTINGS+=("$2")
			OWN=yes
			shift 2
			;;
		--advertise)
			[ -n "${2-}" ] || misuse "--advertise wants an address"
			ADVERTISE=$2
			shift 2
			;;
		--secure)
			[ -r "${2-}/token" ] || misuse "--secure wants a folder with certificates and tokens, got '${2-}'"
			SECURE=$(cd "$2" && pwd)
			TOKEN=$(cat "$SECURE/token")
			OWN=yes
			shift 2
			;;
		--own)
			OWN=yes
			shift
			;;
		--optional)
			[ "$takes_command" = yes ] || misuse "--optional goes with run"
			OPTIONAL=yes
			shift
			;;
		--)
			shift
			COMMAND=("$@")
			break
			;;
		*) misuse "unknown option '$1'" ;;
		esac
	done
	if [ "$takes_command" = yes ] && [ "${#COMMAND[@]}" = 0 ]; then misuse "run wants -- CMD"; fi
	if [ "$takes_command" = no ] && [ "${#COMMAND[@]}" != 0 ]; then misuse "only run takes a command"; fi
}

# default_admin guesses where the admin API of a given broker is, as a stock broker has it.
default_admin() {
	local host=${1#*://}
	host=${host%%/*}
	host=${host%%,*}
	printf 'http://%s:8080\n' "${host%:*}"
}

new_handle() {
	HANDLE=$(mktemp -d "${TMPDIR:-/tmp}/ringfence-pulsar.XXXXXX")
	: >"$HANDLE/.ringfence-pulsar"
}

# available finds a broker's kind and makes sure that it can be started. An engine that cannot get the
# image is no engine.
available() {
	find_kind "$OWN" || return 1
	if [ "$KIND" = docker ] && ! docker image inspect "$IMAGE" >/dev/null 2>&1 && ! docker pull -q "$IMAGE" >/dev/null; then
		WHY="docker cannot pull $IMAGE"
		[ "${RINGFENCE_PULSAR_FROM:-}" != docker ] || return 1
		RINGFENCE_PULSAR_FROM=dist
		find_kind "$OWN" || {
			WHY="docker cannot pull $IMAGE, $WHY"
			return 1
		}
	fi
	[ "$KIND" != dist ] || fetch
}

unavailable() { say "no Pulsar broker can be had here ($WHY)$1"; }

start() {
	start_broker "$HANDLE" "$KIND" "$ADVERTISE" "${SETTINGS[@]+"${SETTINGS[@]}"}"
}

print_env() {
	local prefix=$1
	printf '%sPULSAR_URL=%s\n' "$prefix" "$2"
	printf '%sPULSAR_ADMIN_URL=%s\n' "$prefix" "$3"
	printf '%sPULSAR_HANDLE=%s\n' "$prefix" "$4"
}

cmd_start() {
	parse no "$@"
	available || {
		unavailable ''
		exit $UNAVAILABLE
	}
	if [ "$KIND" = url ]; then
		print_env '' "$PULSAR_URL" "${PULSAR_ADMIN_URL:-$(default_admin "$PULSAR_URL")}" none
		return 0
	fi
	new_handle
	trap 'trap "" INT TERM; stop_broker "$HANDLE"' EXIT
	start
	trap - EXIT
	print_env '' "$(cat "$HANDLE/url")" "$(cat "$HANDLE/admin")" "$HANDLE"
}

handle_of() {
	local handle=${1:-${PULSAR_HANDLE:-}}
	[ -n "$handle" ] || misuse "which broker? Give the PULSAR_HANDLE that start printed"
	printf '%s\n' "$handle"
}

cmd_stop() {
	local handle
	handle=$(handle_of "$@")
	[ "$handle" = none ] && return 0
	[ -d "$handle" ] || say "there is no broker at $handle"
	stop_broker "$handle"
}

cmd_restart() {
	local handle advertise bookie web
	handle=$(handle_of "$@")
	[ -r "$handle/where" ] || die "there is no broker of ours at $handle"
	read -r advertise bookie web <"$handle/where"
	TOKEN=$(cat "$handle/token" 2>/dev/null || true)
	case $(cat "$handle/kind") in
	docker) docker restart -t 0 "$(cat "$handle/container")" >/dev/null ;;
	dist)
		end_broker "$handle"
		launch_dist "$handle" "$advertise" "$bookie"
		;;
	esac
	await_health "$handle" 127.0.0.1 "$web" || {
		broker_log "$handle" | tail -n 40 >&2
		die "the broker did not become healthy again"
	}
}

cmd_env() {
	local handle
	handle=$(handle_of "$@")
	if [ "$handle" = none ]; then
		print_env 'export ' "${PULSAR_URL:?}" "${PULSAR_ADMIN_URL:-$(default_admin "$PULSAR_URL")}" none
		return 0
	fi
	[ -r "$handle/admin" ] || die "there is no broker at $handle"
	print_env 'export ' "$(cat "$handle/url")" "$(cat "$handle/admin")" "$handle"
}

cmd_run() {
	parse yes "$@"
	if ! available; then
		if [ "$OPTIONAL" = no ] || [ "${CI:-}" = true ]; then
			unavailable ''
			exit $UNAVAILABLE
		fi
		unavailable ': broker tests are skipped'
		unset PULSAR_URL PULSAR_ADMIN_URL
		"${COMMAND[@]}"
		return
	fi
	if [ "$KIND" = url ]; then
		PULSAR_ADMIN_URL=${PULSAR_ADMIN_URL:-$(default_admin "$PULSAR_URL")}
		export PULSAR_URL PULSAR_ADMIN_URL
		"${COMMAND[@]}"
		return
	fi
	new_handle
	trap 'trap "" INT TERM HUP; stop_broker "$HANDLE"' EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
	watch_over "$HANDLE"
	start
	PULSAR_URL=$(cat "$HANDLE/url")
	PULSAR_ADMIN_URL=$(cat "$HANDLE/admin")
	PULSAR_HANDLE=$HANDLE
	export PULSAR_URL PULSAR_ADMIN_URL PULSAR_HANDLE
	"${COMMAND[@]}" 9>&-
}

# watch_over stops the broker when this script ends in a way that no trap sees: a process in a group of
# its own reads a pipe that only we hold open (as descriptor 9, closed in what we start).
watch_over() {
	mkfifo "$1/alive"
	(
		set -m
		(
			trap '' INT TERM HUP
			cat "$1/alive" >/dev/null
			stop_broker "$1"
		) </dev/null >/dev/null 2>&1 &
	)
	exec 9>"$1/alive"
}

cmd_home() {
	local major
	if ! cached; then
		OWN=yes
		have mvn || die "there is no Maven to fetch Pulsar with"
		fetch || die "$WHY"
	fi
	major=$(java_major)
	[ "${major:-0}" -ge 17 ] || die "Pulsar needs Java 17; this is ${major:-none}"
	cache_dir
}

cmd_find() {
	find_kind no || {
		unavailable ''
		exit $UNAVAILABLE
	}
	printf '%s\n' "$KIND"
}

case ${1-} in
start | run | stop | restart | env | home | find)
	command=$1
	shift
	"cmd_$command" "$@"
	;;
'' | -h | --help | help) sed -n '3,/^$/s/^# \{0,1\}//p' "$0" ;;
*) misuse "unknown command '$1'" ;;
esac
