#!/usr/bin/env bash
#
# Runs a command under a CPU limit, by the means and with the period by which Kubernetes sets one. Needs Linux
# and root:
#
#   tools/cpu-limit.sh 200m router run --config router.yaml
#
# The command takes this script's place and keeps its process id. Its cgroup stays, empty, until the next run.

set -euo pipefail

limit=${1:-}
if [[ ! $limit =~ ^([1-9][0-9]*)m$ ]] || [ $# -lt 2 ]; then
	echo "usage: tools/cpu-limit.sh MILLICORES COMMAND [ARGUMENT...], as in: tools/cpu-limit.sh 200m router run" >&2
	exit 2
fi
readonly PERIOD=100000 # microseconds
quota=$((PERIOD * ${BASH_REMATCH[1]} / 1000))
shift

if grep -qw cpu /sys/fs/cgroup/cgroup.controllers 2>/dev/null; then
	root=/sys/fs/cgroup
	echo +cpu >"$root/cgroup.subtree_control"
elif [ -e /sys/fs/cgroup/cpu/cgroup.procs ]; then # version 1
	root=/sys/fs/cgroup/cpu
else
	echo "cpu-limit.sh: /sys/fs/cgroup has no cpu controller" >&2
	exit 1
fi
for old in "$root"/cpu-limit-*/; do
	old=${old%/}
	[ -e "/proc/${old##*-}" ] || rmdir "$old" 2>/dev/null || true # unless it has left children behind
done
group=$root/cpu-limit-$$
mkdir "$group"
if [ -e "$group/cpu.max" ]; then
	echo "$quota $PERIOD" >"$group/cpu.max"
else
	echo "$PERIOD" >"$group/cpu.cfs_period_us"
	echo "$quota" >"$group/cpu.cfs_quota_us"
fi
echo $$ >"$group/cgroup.procs"
exec "$@"
