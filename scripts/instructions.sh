#!/usr/bin/env bash
# CPU instructions that a transport executes per message, and per call that finds nothing:
# A is NCCL 2.21.5's built-in IB transport, B the plugin, both on
# the software RDMA device. `ferrite solo` makes all calls in one thread in a fixed order, valgrind's callgrind counts.
#
# What counts: every instruction of the transport's own library, and every one that its calls into other libraries take
# (memcpy, memset, malloc, ...), for a send and its receive together, from isend and irecv to the last test. What does
# not: libibverbs with its device, which is the same for both; ferrite itself; the kernel. Starting, connecting and
# ending do not count either: the number is the difference of two runs that differ in their messages only.
#
# A call that finds nothing is a test of a receive that nothing was sent to, or an isend without a clear-to-send: the
# number is the difference of two runs of the same messages, with such calls and without. Its time is the least of
# several runs in turn, each of some 100 rounds of 1000 calls, without valgrind; what ferrite itself takes is in it.
#
#   scripts/instructions.sh            uses dist/, or FERRITE_DIST; builds dist/ if it is not there
#
# Settings of both transports are taken from the environment. FEW=1000 and MANY=3000 are the messages of the two runs: with
# FERRITE_LANES_AFTER_MB=64, those of 64 KiB from FEW=16000 to MANY=18000 come when a connection has had lanes and has given them up.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# So that a failure inside $(...) ends the script.
shopt -s inherit_errexit

missing_packages() {
    command -v valgrind >/dev/null || echo valgrind
}
install_packages
setup_fetch

FEW=${FEW:-1000}
MANY=${MANY:-3000}
dist=${FERRITE_DIST:-dist}
if [ ! -x "$dist/bin/ferrite" ] || [ ! -e "$dist/lib/libnccl-net.so" ] || [ ! -e "$dist/softrnic/libibverbs.so.1" ]; then
    [ -z "${FERRITE_DIST:-}" ] || die "FERRITE_DIST=$dist is not complete"
    scripts/build.sh
fi
dist=$(cd "$dist" && pwd)
nccl=$(readlink -f "$("$dist/bin/ferrite" wheel)")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Files of dead processes in the usual folder would be looked through at each start.
export FERRITE_STATS_DIR=$work

# run FILE SIZE DEPTH MESSAGES ARGUMENT...: writes what callgrind counts of `ferrite solo` to FILE.
run() {
    local file=$1 size=$2 depth=$3 messages=$4
    shift 4
    rm -f "$file"
    # No report of waits: the thread that looks at connections once a second does so for each few messages under valgrind.
    FERRITE_HANG_SECONDS=0 valgrind --tool=callgrind --trace-children=yes --compress-strings=no --compress-pos=no \
        --callgrind-out-file="$file" "$dist/bin/ferrite" solo "$@" --softrnic "$dist/softrnic" \
        --size "$size" --depth "$depth" --messages "$messages" >"$work/log" 2>&1 ||
        die "a run failed: $* of $size B, depth $depth: $(sed '/^==/d' "$work/log" | tail -n 5)"
}

# per_message LIBRARY SIZE DEPTH --plugin PATH|--stock PATH
per_message() {
    run "$work/few" "$2" "$3" "$FEW" "${@:4}"
    run "$work/many" "$2" "$3" "$MANY" "${@:4}"
    "$dist/bin/ferrite" instructions --library "$1" --messages $((MANY - FEW)) --minus "$work/few" "$work/many"
}

printf '%8s %6s %15s %15s %6s\n' "size [B]" depth "A [instr/msg]" "B [instr/msg]" B/A
for size in 8 65536; do
    for depth in 1 8; do
        a=$(per_message "/$(basename "$nccl")" "$size" "$depth" --stock "$nccl")
        b=$(per_message /libnccl-net.so "$size" "$depth" --plugin "$dist/lib/libnccl-net.so")
        awk -v size="$size" -v depth="$depth" -v a="$a" -v b="$b" \
            'BEGIN { printf "%8d %6d %15d %15d %6.2f\n", size, depth, a, b, b / a }'
    done
done

# per_call LIBRARY OPTION --plugin PATH|--stock PATH: instructions of a call in vain, OPTION of which are made for each message.
per_call() {
    local calls=30
    run "$work/few" 8 1 "$FEW" "${@:3}"
    run "$work/many" 8 1 "$FEW" "$2" "$calls" "${@:3}"
    "$dist/bin/ferrite" instructions --library "$1" --messages $((FEW * calls)) --minus "$work/few" "$work/many"
}

# ns OPTION --plugin PATH|--stock PATH: nanoseconds of such a call in one run.
ns() {
    "$dist/bin/ferrite" solo "${@:2}" --softrnic "$dist/softrnic" --messages 100 "$1" 1000 |
        sed -n 's/.*, \([0-9.]*\) ns per .* in vain.*/\1/p'
}

# least OLD NEW: the lesser number.
least() {
    awk -v old="$1" -v new="$2" 'BEGIN { print (old == "" || new < old) ? new : old }'
}

printf '\n%-22s %9s %9s %6s %8s %8s %6s\n' "in vain" "A [instr]" "B [instr]" B/A "A [ns]" "B [ns]" B/A
for option in --empty-tests --refused-sends; do
    a=$(per_call "/$(basename "$nccl")" "$option" --stock "$nccl")
    b=$(per_call /libnccl-net.so "$option" --plugin "$dist/lib/libnccl-net.so")
    a_ns='' b_ns=''
    for _ in 1 2 3 4 5 6 7 8; do
        a_ns=$(least "$a_ns" "$(ns "$option" --stock "$nccl")")
        b_ns=$(least "$b_ns" "$(ns "$option" --plugin "$dist/lib/libnccl-net.so")")
    done
    case $option in
    --empty-tests) call="test, nothing there" ;;
    *) call="isend, nothing cleared" ;;
    esac
    awk -v call="$call" -v a="$a" -v b="$b" -v a_ns="$a_ns" -v b_ns="$b_ns" \
        'BEGIN { printf "%-22s %9d %9d %6.2f %8.2f %8.2f %6.2f\n", call, a, b, b / a, a_ns, b_ns, b_ns / a_ns }'
done
