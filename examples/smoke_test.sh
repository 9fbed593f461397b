#!/bin/sh
# Is this cluster fit for a job? Five checks on every node of a hostfile, a verdict in the last line, exit code 0 or 1.
#
#     smoke_test.sh HOSTFILE
#
# MPILAUNCH is the mpilaunch to use, without it the one in PATH. Everything else comes from its own variables, such as
# MPILAUNCH_AGENT=openssh. Nothing is copied to the nodes: they need python3 and nothing of ours.

set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
mpilaunch=${MPILAUNCH:-mpilaunch}

if [ $# -ne 1 ] || [ ! -r "$1" ]; then
    echo "usage: smoke_test.sh HOSTFILE" >&2
    exit 2
fi
hostfile=$1
failed=
checks=0

# Run a command once on each node.
on_each_node() {
    "$mpilaunch" --quiet --hostfile "$hostfile" --npernode 1 --timeout 120 "$@" </dev/null
}

# Run one check, and show its output under its name.
check() {
    checks=$((checks + 1))
    if output=$("$1" 2>&1); then
        echo "ok      $1"
    else
        echo "FAILED  $1"
        failed="$failed${failed:+, }$1"
    fi
    printf '%s\n' "$output" | sed 's/^/        /'
}

# Every node answers; the kernels are for you to look at.
reach() {
    on_each_node --fold -- uname -sr
}

# The clocks agree, as log files and file systems want. The ranks start within some tenths of a second.
clocks() {
    seconds=$(on_each_node -- date +%s) || return 1
    printf '%s\n' "$seconds" | awk '
        NR == 1 || $1 < low  { low = $1 }
        NR == 1 || $1 > high { high = $1 }
        END { print "they differ by " high - low " s"; exit high - low > 2 }'
}

# One version of Python: what one node pickles, another must read.
pythons() {
    versions=$(on_each_node --fold -- python3 -c 'import platform; print(platform.python_version())') || return 1
    printf '%s\n' "$versions"
    [ "$(printf '%s\n' "$versions" | wc -l)" -eq 1 ]
}

# The nodes talk with each other, not only with us: each to the next, round the ring.
network() {
    on_each_node -- python3 -c "$(cat "$here/ring_allreduce.py")"
}

# A failure comes back as it was.
failure() {
    on_each_node -- sh -c 'exit 7' >/dev/null 2>&1
    code=$?
    echo "exit code $code after a rank's exit code 7"
    [ "$code" -eq 7 ]
}

check reach
if [ -n "$failed" ]; then
    echo "smoke test: FAILED: not every node of $hostfile can be reached"
    exit 1
fi
check clocks
check pythons
check network
check failure

if [ -n "$failed" ]; then
    echo "smoke test: FAILED: $failed"
    exit 1
fi
echo "smoke test: all $checks checks passed"
