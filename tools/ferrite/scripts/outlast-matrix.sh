#!/usr/bin/env bash
# Runs every scenario of `ferrite outlast` with each transport named, and writes into FOLDER a file of outcomes for each and the table
# of all outcomes that are there.
#
#   tools/ferrite/scripts/outlast-matrix.sh FOLDER REPETITIONS TRANSPORT...
#
# TRANSPORT: a release of NCCL for its built-in transport (2.21.5), the same with its port failover and recovery (2.30.7+switches), or
# the path of a plugin. SCENARIOS names scenarios [all]; FERRITE_DIST is the folder that scripts/build.sh fills [dist/].

set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
ferrite=${FERRITE_DIST:-$root/dist}/bin/ferrite
folder=$1 repetitions=$2
shift 2
mkdir -p "$folder"
for transport in "$@"; do
    case $transport in
    *+switches) side=(--stock "${transport%+switches}" --switches on) ;;
    [0-9]*) side=(--stock "$transport") ;;
    *) side=(--plugin "$transport") ;;
    esac
    name=$(basename "$transport" .so)
    # 1: a byte was wrong, which the table tells.
    "$ferrite" outlast --scenario "${SCENARIOS:-all}" "${side[@]}" --reps "$repetitions" --format json >"$folder/$name.jsonl" ||
        [ $? = 1 ]
done
"$ferrite" outlast --table "$folder"/*.jsonl >"$folder/table.md"
