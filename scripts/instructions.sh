#!/usr/bin/env bash
# CPU instructions that a transport executes per message, locked ones among them, and per call that finds nothing:
# A is the built-in IB transport of releases of NCCL, B the plugin, all on
# the software RDMA device. `ferrite solo` makes all calls in one thread in a fixed order, valgrind's callgrind counts.
#
# What counts: every instruction of the transport's own library, and every one that its calls into other libraries take
# (memcpy, memset, malloc, ...), for a send and its receive together, from isend and irecv to the last test. What does
# not: libibverbs with its device, which is the same for both; ferrite itself; the kernel. Starting, connecting and
# ending do not count either: the number is the difference of two runs that differ in their messages only.
#
# Locked instructions, on x86-64, are those with a lock prefix, xchg with memory, and mfence, in the transport's own library; what is in
# libc is told beside it, whoever calls it, with the device's calls.
#
# A call that finds nothing is a test of a receive that nothing was sent to, or an isend without a clear-to-send: the
# number is the difference of two runs of the same messages, with such calls and without. Its time is the least of
# several runs in turn, each of some 100 rounds of 1000 calls, without valgrind. What ferrite itself takes is in it, and the device's poll,
# which no transport can do without: both are measured with a plugin that does nothing but answer (answering_plugin.c), and told beside.
#
# All of the plugin is on that is on by default, failover, counters and histograms too, but reports of waits
# (FERRITE_HANG_SECONDS=0): the thread that looks at connections once a second would do so for each few messages under valgrind.
#
#   scripts/instructions.sh                        against NCCL 2.21.5
#   scripts/instructions.sh 2.21.5,2.30.7,2.32.3   against several releases; each is fetched once
#
# It uses dist/, or FERRITE_DIST; builds dist/ if it is not there. FERRITE_PLUGIN names another plugin than dist's.
#
# Settings of both transports are taken from the environment. FEW=1000 and MANY=3000 are the messages of the two runs.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# So that a failure inside $(...) ends the script.
shopt -s inherit_errexit

missing_packages() {
    command -v valgrind >/dev/null || echo valgrind
    command -v cc >/dev/null || echo gcc libc6-dev
    [ -e /usr/include/infiniband/verbs.h ] || echo libibverbs-dev
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
plugin=$(readlink -f "${FERRITE_PLUGIN:-$dist/lib/libnccl-net.so}")
IFS=, read -ra releases <<<"${1:-2.21.5}"
declare -A nccl
for release in "${releases[@]}"; do
    nccl[$release]=$(readlink -f "$("$dist/bin/ferrite" wheel "$release")")
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Files of dead processes in the usual folder would be looked through at each start.
export FERRITE_STATS_DIR=$work

# run FILE SIZE DEPTH MESSAGES ARGUMENT...: writes what callgrind counts of `ferrite solo` to FILE.
run() {
    local file=$1 size=$2 depth=$3 messages=$4
    shift 4
    rm -f "$file"
    FERRITE_HANG_SECONDS=0 valgrind --tool=callgrind --trace-children=yes --compress-strings=no --compress-pos=no \
        --dump-instr=yes --callgrind-out-file="$file" "$dist/bin/ferrite" solo "$@" --softrnic "$dist/softrnic" \
        --size "$size" --depth "$depth" --messages "$messages" >"$work/log" 2>&1 ||
        die "a run failed: $* of $size B, depth $depth: $(sed '/^==/d' "$work/log" | tail -n 5)"
}

# source_of SIDE: the arguments of `ferrite solo` for B, or for A's release.
source_of() {
    case $1 in
    B) echo "--plugin $plugin" ;;
    answering) echo "--plugin $work/answering.so" ;;
    *) echo "--stock ${nccl[$1]}" ;;
    esac
}

# library_of SIDE: a part of the path of its library.
library_of() {
    case $1 in
    B) echo "/$(basename "$plugin")" ;;
    *) echo "/$(basename "${nccl[$1]}")" ;;
    esac
}

# count SIDE MESSAGES OPTION...: what the run $work/many has more than $work/few, for each of so many messages.
count() {
    "$dist/bin/ferrite" instructions --library "$(library_of "$1")" --messages "$2" --minus "$work/few" "${@:3}" "$work/many"
}

# ratio A B: B/A.
ratio() {
    awk -v a="$1" -v b="$2" 'BEGIN { if (a > 0) printf "%.3f", b / a; else print "-" }'
}

# columns VALUE...: a line of a table.
columns() {
    printf '%-25s %-8s' "$1" "$2"
    printf ' %9s' "${@:3}"
    printf '\n'
}

columns "a message" "NCCL (A)" "A" "B" "B/A" "A locked" "B locked"
libc=()
for size in 8 65536; do
    for depth in 1 8; do
        declare -A all locked
        for side in B "${releases[@]}"; do
            # Words.
            # shellcheck disable=SC2046
            run "$work/few" "$size" "$depth" "$FEW" $(source_of "$side")
            # shellcheck disable=SC2046
            run "$work/many" "$size" "$depth" "$MANY" $(source_of "$side")
            all[$side]=$(count "$side" $((MANY - FEW)))
            locked[$side]=$(count "$side" $((MANY - FEW)) --locked)
            libc+=("$size B, depth $depth, ${side/#B/Ferrite}: $("$dist/bin/ferrite" instructions --library /libc.so --locked \
                --messages $((MANY - FEW)) --minus "$work/few" "$work/many")")
        done
        for release in "${releases[@]}"; do
            columns "$size B, depth $depth" "$release" "${all[$release]}" "${all[B]}" "$(ratio "${all[$release]}" "${all[B]}")" \
                "${locked[$release]}" "${locked[B]}"
        done
    done
done
printf '\nlocked instructions of libc for a message, those for the device among them:\n'
printf '%s\n' "${libc[@]}"

cc -O2 -shared -fPIC -Iinclude scripts/answering_plugin.c -o "$work/answering.so" -L"$dist/softrnic" -l:libibverbs.so.1

# ns SIDE OPTION: nanoseconds of such a call in one run.
ns() {
    # Words.
    # shellcheck disable=SC2046
    "$dist/bin/ferrite" solo $(source_of "$1") --softrnic "$dist/softrnic" --messages 100 "$2" 1000 |
        sed -n 's/.*, \([0-9.]*\) ns per .* without effect.*/\1/p'
}

# least OLD NEW: the lesser number.
least() {
    awk -v old="$1" -v new="$2" 'BEGIN { print (old == "" || new < old) ? new : old }'
}

# empty_call SIDE OPTION: instructions of such a call.
empty_call() {
    local calls=30
    # Words.
    # shellcheck disable=SC2046
    run "$work/few" 8 1 "$FEW" $(source_of "$1")
    # shellcheck disable=SC2046
    run "$work/many" 8 1 "$FEW" "$2" "$calls" $(source_of "$1")
    count "$1" $((FEW * calls))
}

printf '\n'
columns "a call that finds nothing" "NCCL (A)" "A" "B" "B/A" "A [ns]" "B [ns]" "B/A"
declare -A tests
for option in --empty-tests --refused-sends; do
    declare -A instructions times=()
    for side in B "${releases[@]}"; do
        instructions[$side]=$(empty_call "$side" "$option")
    done
    for _ in 1 2 3 4 5 6 7 8; do
        for side in B "${releases[@]}"; do
            times[$side]=$(least "${times[$side]:-}" "$(ns "$side" "$option")")
        done
    done
    case $option in
    --empty-tests)
        call="test"
        for side in B "${releases[@]}"; do
            tests[$side]=${times[$side]}
        done
        alone='' polls=''
        for _ in 1 2 3 4 5 6 7 8; do
            alone=$(least "$alone" "$(ns answering "$option")")
            polls=$(least "$polls" "$(ANSWERING_PLUGIN_POLLS=1 ns answering "$option")")
        done
        ;;
    *) call="isend" ;;
    esac
    for release in "${releases[@]}"; do
        columns "$call" "$release" "${instructions[$release]}" "${instructions[B]}" \
            "$(ratio "${instructions[$release]}" "${instructions[B]}")" "${times[$release]}" "${times[B]}" \
            "$(ratio "${times[$release]}" "${times[B]}")"
    done
done

printf '\nof a test that finds nothing, %s ns are those of a plugin that does nothing, and %s ns of one that polls. Without these:\n' \
    "$alone" "$polls"
columns "" "NCCL (A)" "A [ns]" "B [ns]" "B/A"
for release in "${releases[@]}"; do
    a=$(awk -v all="${tests[$release]}" -v polls="$polls" 'BEGIN { printf "%.2f", all - polls }')
    b=$(awk -v all="${tests[B]}" -v polls="$polls" 'BEGIN { printf "%.2f", all - polls }')
    columns "test" "$release" "$a" "$b" "$(ratio "$a" "$b")"
done
