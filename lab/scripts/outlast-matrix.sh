#!/usr/bin/env bash
# Runs every scenario of `ferrite outlast` with each transport named, and writes into FOLDER a file of outcomes for each and the table
# of all outcomes that are there.
#
#   lab/scripts/outlast-matrix.sh FOLDER REPETITIONS TRANSPORT...
#
# TRANSPORT: a release of NCCL for its built-in transport (2.21.5), the same with its port failover and recovery (2.30.7+switches), or
# the path of a plugin. SCENARIOS names scenarios [all]; FERRITE_DIST is the folder that scripts/build.sh fills [dist/].
# OUTAGES, in milliseconds ("20 5000"): the scenarios and outages of these lengths, with each transport's own defaults.

set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
ferrite=${FERRITE_DIST:-$root/dist}/bin/ferrite
folder=$1 repetitions=$2
shift 2
mkdir -p "$folder"

outlast() {
    # 1: a byte was wrong, which the table tells.
    "$ferrite" outlast "$@" "${side[@]}" --reps "$repetitions" --format json || [ $? = 1 ]
}

# outage NAME MS BEGIN END: a stream in which the fault BEGIN lasts for MS. An end has hung that gets nowhere for 20 s longer.
outage() {
    local name=$1 ms=$2 begin=$3 end=$4 length="$2 ms"
    ((ms < 1000)) || length="$((ms / 1000)) s"
    outlast --own-defaults --name "$name for $length" --limit $((ms / 1000 + 20)) --lasting $((ms + 2000))ms \
        --fault "$begin" --at 1000ms --fault "$end" --at $((ms + 1000))ms
}

for transport in "$@"; do
    case $transport in
    *+switches) side=(--stock "${transport%+switches}" --switches on) ;;
    [0-9]*) side=(--stock "$transport") ;;
    *) side=(--plugin "$transport") ;;
    esac
    name=$(basename "$transport" .so)
    if [ -z "${OUTAGES:-}" ]; then
        outlast --scenario "${SCENARIOS:-all}"
    else
        for ms in $OUTAGES; do
            outage "the only port is down" "$ms" "port softrnic0/1 down" "port softrnic0/1 up"
        done
        for ms in $OUTAGES; do
            outage "the only path loses everything" "$ms" "drop attempts=all" clear
        done
        outlast --own-defaults --limit 60 --scenario "${SCENARIOS:-all}"
    fi >"$folder/$name.jsonl"
done
"$ferrite" outlast --table "$folder"/*.jsonl >"$folder/table.md"
