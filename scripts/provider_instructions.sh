#!/usr/bin/env bash
# Counts what a message costs on the system's own libmlx5: CPU instructions of the transport (the plugin, or the built-in IB transport of
# releases of NCCL) and of libmlx5, locks, fences and doorbells, for a send and its receive together; then the same for a test that finds
# nothing. softrnic is the kernel and the card (softrnic run --provider mlx5). `ferrite solo` makes all calls in one thread in a fixed
# order, valgrind's callgrind counts.
#
# Counted: every instruction of the library, and every one that its calls into the C library take. A lock is a call of
# pthread_spin_lock, which only libmlx5 makes; a fence is an sfence, lfence or mfence in libmlx5; a doorbell is a call that posts sends.
# Starting, connecting and ending do not count: each number is the difference of two runs that differ in their messages only. softrnic
# completes at once, so a poll finds what it looks for; in a job most polls find nothing.
#
#   scripts/provider_instructions.sh               the plugin and NCCL 2.21.5
#   scripts/provider_instructions.sh 2.21.5,2.32.3 the plugin and several releases; each is fetched once
#
# It uses dist/, or FERRITE_DIST; builds dist/ if it is not there. Settings of both transports are taken from the environment, such as
# FERRITE_THREAD_DOMAINS=0. FEW=1000 and MANY=3000 are the messages of the two runs.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# So that a failure inside $(...) ends the script.
shopt -s inherit_errexit

missing_packages() {
    command -v valgrind >/dev/null || echo valgrind
    command -v objdump >/dev/null || echo binutils
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

# The addresses of fences in libmlx5.
fences=$work/fences
: >"$fences"
for library in /usr/lib/*/libibverbs/libmlx5-rdmav*.so; do
    objdump -d --no-show-raw-insn "$library" | awk '/\t[slm]fence/ { sub(":", "", $1); print "0x" $1 }' >>"$fences"
done

# run FILE SIZE DEPTH MESSAGES ARGUMENT...: writes what callgrind counts of `ferrite solo` to FILE.
run() {
    local file=$1 size=$2 depth=$3 messages=$4
    rm -f "$file"
    "$dist/bin/softrnic" run --provider mlx5 -- valgrind --tool=callgrind --trace-children=yes --compress-strings=no --compress-pos=no \
        --dump-instr=yes --callgrind-out-file="$file" "$dist/bin/ferrite" solo "${@:5}" --verbs system \
        --size "$size" --depth "$depth" --messages "$messages" >"$work/log" 2>&1 ||
        die "a run failed: ${*:5} of $size B, depth $depth: $(sed '/^==/d' "$work/log" | tail -n 5)"
}

# count LIBRARY TIMES: instructions in it, of one of so many messages or calls.
count() {
    "$dist/bin/ferrite" instructions --library "$1" --messages "$2" --minus "$work/few" "$work/many"
}

# calls LIBRARY PATTERN TIMES: calls of its functions whose names match.
calls() {
    "$dist/bin/ferrite" instructions --library "$1" --functions --minus "$work/few" "$work/many" |
        awk -v pattern="$2" -v times="$3" '$0 ~ pattern { calls += $2 } END { printf "%.2f", calls / times }'
}

# fences_of FILE: how many fences ran.
fences_of() {
    awk 'FNR == NR { fence[$1] = 1; next }
        /^ob=/ { is_one = /libmlx5/ }
        /^calls=/ { getline; next }
        is_one && ($1 in fence) { count += $3 }
        END { print count + 0 }' "$fences" "$1"
}

# row WHAT SIDE TIMES: what the run `many` has more than the run `few`, for one of so many messages or calls.
row() {
    local transport provider
    transport=$(count "$library" "$3")
    provider=$(count /libmlx5 "$3")
    printf '%-18s %-9s %9s %9s %9s %9s %9s %9s\n' "$1" "$2" "$transport" "$provider" $((transport + provider)) \
        "$(calls /libc.so pthread_spin_lock "$3")" \
        "$(awk -v more="$(fences_of "$work/many")" -v less="$(fences_of "$work/few")" -v times="$3" \
            'BEGIN { printf "%.2f", (more - less) / times }')" \
        "$(calls /libsoftrnic-provider "preload::(post_send|wr_complete)$" "$3")"
}

# side SIDE: sets the library to count, and the arguments of `ferrite solo`.
side() {
    case $1 in
    Ferrite) library=/libnccl-net.so arguments=(--plugin "$dist/lib/libnccl-net.so") ;;
    *)
        library=$(readlink -f "$("$dist/bin/ferrite" wheel "$1")")
        arguments=(--stock "$library")
        library=/$(basename "$library")
        ;;
    esac
}

printf '%-18s %-9s %9s %9s %9s %9s %9s %9s\n' "a message" "of" "transport" "libmlx5" "both" "locks" "fences" "doorbells"
for size in 8 65536; do
    for depth in 1 8; do
        for side in Ferrite "${releases[@]}"; do
            side "$side"
            run "$work/few" "$size" "$depth" "$FEW" "${arguments[@]}"
            run "$work/many" "$size" "$depth" "$MANY" "${arguments[@]}"
            row "$size B, depth $depth" "$side" $((MANY - FEW))
        done
    done
done
tests=30
for side in Ferrite "${releases[@]}"; do
    side "$side"
    run "$work/few" 8 1 "$FEW" "${arguments[@]}"
    run "$work/many" 8 1 "$FEW" "${arguments[@]}" --empty-tests "$tests"
    row "an empty test" "$side" $((FEW * tests))
done
