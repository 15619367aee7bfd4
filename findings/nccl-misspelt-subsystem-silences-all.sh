#!/usr/bin/env bash
# An empty NCCL_DEBUG_SUBSYS silences NCCL, also its own warnings. Up to 2.28 a misspelt word does the same; later, it drops the whole list.
#
# One expects: NCCL_DEBUG_SUBSYS filters information; warnings are always shown. An empty value means the default, and an unknown word is
#   ignored or reported.
# What happens: with NCCL_DEBUG_SUBSYS="" there is no line at all, neither with NCCL_DEBUG=WARN nor with INFO, in any release. The word NETT, or
#   " NET" with a blank, does the same in 2.21.5 and 2.28.9. With a second, known word, lines appear there. From 2.30.7 on one unknown
#   word drops the whole list: with NET,NETT the default applies, and NET's information is not shown.
# What follows: a job fails with an error code and an empty log. Do not use an empty value to undo what an image has set: set INIT,BOOTSTRAP,ENV,
#   which is the default, or ALL.
#
# Seen with nvidia-nccl-cu12 2.21.5, 2.28.9, 2.30.7 and 2.32.3. The warning is that of an interface that is not there.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/call.py" <<'P'
import ctypes, sys
ctypes.CDLL(sys.argv[1]).ncclGetUniqueId(ctypes.create_string_buffer(128))
ctypes.CDLL(None).fflush(None)
P
for release in 2.21.5 2.28.9 2.30.7 2.32.3; do
    nccl_get "$release"
    warnings() {
        env -u NCCL_DEBUG_SUBSYS NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=no-such-interface "$@" python3 "$folder/call.py" "$(nccl_library "$release")" 2>&1 |
            grep -c ' WARN ' || true
    }
    seen="unset: $(warnings)
$(for value in "" ALL NET NETT " NET" NETT,NET; do echo "\"$value\": $(warnings "NCCL_DEBUG_SUBSYS=$value")"; done)"
    information() {
        NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=lo NCCL_DEBUG_SUBSYS="$1" python3 "$folder/call.py" "$(nccl_library "$release")" 2>&1 |
            grep -c 'NCCL_SOCKET_IFNAME set to lo' || true
    }
    seen+="
NET's information with NET: $(information NET), with NET,NETT: $(information NET,NETT)"
    case $release in 2.21.5 | 2.28.9) unknown=0 list=1 ;; *) unknown=1 list=0 ;; esac
    compare "NCCL $release, warnings" "$seen" "unset: 1
\"\": 0
\"ALL\": 1
\"NET\": 1
\"NETT\": $unknown
\" NET\": $unknown
\"NETT,NET\": 1
NET's information with NET: 1, with NET,NETT: $list"
done
exit "$status"
