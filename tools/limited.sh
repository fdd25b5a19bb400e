#!/usr/bin/env bash
#
# Runs a command that must end within some seconds. One that does not is ended with all processes that it started, after a list of them: a check that hangs
# says where.
#
# Usage: tools/limited.sh SECONDS COMMAND...    the exit code is that of the command, or 124

set -euo pipefail
limit=$1
shift

# descendants PID prints the processes below PID: id, time since their start, command.
descendants() {
	ps -eo pid=,ppid=,etime=,args= | awk -v root="$1" '
		BEGIN { n = 0 }
		{ parent[$1] = $2; id[n] = $1; line = $1 "  " $3 " "; for (i = 4; i <= NF; i++) line = line " " $i; text[n++] = substr(line, 1, 200) }
		END { for (i = 0; i < n; i++) { p = id[i]; while (p != root && p in parent && p != parent[p]) p = parent[p]; if (p == root) print "   " text[i] } }'
}

set -m # a process group for each
"$@" &
command=$!
(sleep "$limit" && kill -USR1 $$) &
clock=$!
set +m

# stop ends the group of the command. Another limited.sh in it ends the group that it made.
stop() {
	kill -TERM -- "-$clock" 2>/dev/null || true
	kill -TERM -- "-$command" 2>/dev/null || return 0
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		sleep 0.5
		kill -0 -- "-$command" 2>/dev/null || return 0
	done
	kill -KILL -- "-$command" 2>/dev/null || true
}
late=
trap 'late=yes' USR1
trap 'stop; exit 143' INT TERM HUP

code=0
wait "$command" || code=$?
if [ -n "$late" ]; then
	{
		echo "== $* has not ended within $limit s, and is ended now; its processes:"
		descendants "$command"
	} >&2
	stop
	exit 124
fi
kill -TERM -- "-$clock" 2>/dev/null || true
exit "$code"
