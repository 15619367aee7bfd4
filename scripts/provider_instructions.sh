#!/usr/bin/env bash
# Counts the CPU instructions and locks of a message on the system's own libmlx5: those of the transport (the plugin, or the built-in IB
# transport of releases of NCCL) and those of libmlx5, for a send and its receive together. softrnic is the kernel and the card
# (softrnic run --provider mlx5). `ferrite solo` makes all calls in one thread in a fixed order, valgrind's callgrind counts.
#
# Counted: every instruction of the library, and every one that its calls into the C library take. A lock is a call of
# pthread_spin_lock, which only libmlx5 makes. Starting, connecting and ending do not count: each number is the difference of two runs
# that differ in their messages only. softrnic completes at once, so a poll finds what it looks for; in a job most polls find nothing.
#
#   scripts/provider_instructions.sh               the plugin and NCCL 2.21.5
#   scripts/provider_instructions.sh 2.21.5,2.32.3 the plugin and several releases; each is fetched once
#
# It uses dist/, or FERRITE_DIST; builds dist/ if it is not there. Settings of both transports are taken from the environment, such as
# FERRITE_THREAD_DOMAINS=1. FEW=1000 and MANY=3000 are the messages of the two runs.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# So that a failure inside $(...) ends the script.
shopt -s inherit_errexit

missing_packages() {
    command -v valgrind >/dev/null || echo valgrind
    compgen -G "/usr/lib/*/libibverbs/libmlx5-rdmav*.so" >/dev/null || echo ibverbs-providers
}
install_packages
setup_fetch

FEW=${FEW:-1000}
MANY=${MANY:-3000}
dist=${FERRITE_DIST:-dist}
if [ ! -x "$dist/bin/ferrite" ] || [ ! -e "$dist/softrnic-provider/libsoftrnic-provider.so" ]; then
    [ -z "${FERRITE_DIST:-}" ] || die "FERRITE_DIST=$dist is not complete"
    scripts/build.sh
fi
dist=$(cd "$dist" && pwd)
IFS=, read -ra releases <<<"${1:-2.21.5}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Files of dead processes in the usual folder would be looked through at each start.
export FERRITE_STATS_DIR=$work SOFTRNIC_QUIET=1 FERRITE_HANG_SECONDS=0

# run FILE SIZE DEPTH MESSAGES ARGUMENT...: writes what callgrind counts of `ferrite solo` to FILE.
run() {
    local file=$1 size=$2 depth=$3 messages=$4
    rm -f "$file"
    "$dist/bin/softrnic" run --provider mlx5 -- valgrind --tool=callgrind --trace-children=yes --compress-strings=no --compress-pos=no \
        --callgrind-out-file="$file" "$dist/bin/ferrite" solo "${@:5}" --verbs system \
        --size "$size" --depth "$depth" --messages "$messages" >"$work/log" 2>&1 ||
        die "a run failed: ${*:5} of $size B, depth $depth: $(sed '/^==/d' "$work/log" | tail -n 5)"
}

# count LIBRARY: instructions of a message in it.
count() {
    "$dist/bin/ferrite" instructions --library "$1" --messages $((MANY - FEW)) --minus "$work/few" "$work/many"
}

# locks: those that a message takes.
locks() {
    "$dist/bin/ferrite" instructions --library /libc.so --functions --minus "$work/few" "$work/many" |
        awk -v messages=$((MANY - FEW)) '/pthread_spin_lock/ { calls += $2 } END { printf "%.2f", calls / messages }'
}

# row SIZE DEPTH SIDE: instructions of the transport and of libmlx5, and locks.
row() {
    local transport library arguments
    case $3 in
    Ferrite) library=/libnccl-net.so arguments=(--plugin "$dist/lib/libnccl-net.so") ;;
    *)
        library=$(readlink -f "$("$dist/bin/ferrite" wheel "$3")")
        arguments=(--stock "$library")
        library=/$(basename "$library")
        ;;
    esac
    run "$work/few" "$1" "$2" "$FEW" "${arguments[@]}"
    run "$work/many" "$1" "$2" "$MANY" "${arguments[@]}"
    transport=$(count "$library")
    local provider
    provider=$(count /libmlx5)
    printf '%-18s %-9s %9s %9s %9s %9s\n' "$1 B, depth $2" "$3" "$transport" "$provider" $((transport + provider)) "$(locks)"
}

printf '%-18s %-9s %9s %9s %9s %9s\n' "a message" "of" "transport" "libmlx5" "both" "locks"
for size in 8 65536; do
    for depth in 1 8; do
        for side in Ferrite "${releases[@]}"; do
            row "$size" "$depth" "$side"
        done
    done
done
