#!/usr/bin/env bash
# Whether the built plugin and that of an older release understand each other: every form of message, each of them as rank 0 and as
# rank 1, over connections both ways. Where the wire protocol is another one, each has to refuse the other in words.
#
#   scripts/compatible.sh [PLUGIN]     PLUGIN is the older libnccl-net.so; by default what FERRITE_BASE_PLUGIN names; 77: there is none
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[ $# -le 1 ] || die "usage: scripts/compatible.sh [PLUGIN]"
base=${1:-${FERRITE_BASE_PLUGIN:-}}
if [ -z "$base" ]; then
    echo "skipped: no release to compare with (FERRITE_BASE_PLUGIN names its libnccl-net.so)"
    exit 77
fi
dist=${FERRITE_DIST:-$ROOT/dist}
ours=$dist/lib/libnccl-net.so
[ -e "$ours" ] || die "$ours is missing: scripts/build.sh makes it"

# one_way RANK0 RANK1
one_way() {
    local said
    if said=$("$dist/bin/ferrite" verify --plugin "$1" --peer-plugin "$2" 2>&1); then
        grep -E '^(single|valid)' <<<"$said"
    elif grep -q 'speaks protocol [0-9]*, this' <<<"$said"; then
        echo "another protocol, refused in words: $(grep -m 1 'speaks protocol' <<<"$said")"
    else
        die "$1 and $2 neither understand nor refuse each other: $said"
    fi
}
one_way "$ours" "$base"
one_way "$base" "$ours"
