#!/usr/bin/env bash
# NCCL up to 2.28 cuts each line that a plugin logs at 1,023 bytes, including NCCL's prefix. ncclGetLastError is cut so in every release.
#
# One expects: the logger that NCCL gives to a plugin works like printf, for lines of any length.
# What happens: NCCL makes a line in a buffer of 1,024 bytes. The rest is lost without a sign. How much fits depends on the host name, the
#   process id, and the source file that the plugin names. 2.32.3 prints the whole line, but still cuts the text of ncclGetLastError.
# What follows: put what matters first. Write a long report to a file, and begin the line with its path.
#
# Seen with nvidia-nccl-cu12 2.21.5, 2.28.9 and 2.32.3, by the logger itself, with a warning of 3,000 bytes.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/log.py" <<'P'
import ctypes, sys
from nccl import Nccl

nccl = Nccl(sys.argv[1])
log = nccl.function("ncclDebugLog", None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)
log(2, ctypes.c_ulong(-1).value, b"plugin.c", 1, b"%s", b"x" * 3000)
ctypes.CDLL(None).fflush(None)
print("last error:", len(nccl.last_error()))
P
for release in 2.21.5 2.28.9 2.32.3; do
    nccl_get "$release"
    case $release in 2.32.3) line="longer than 3000" ;; *) line="cut to 1022" ;; esac
    seen=$(env NCCL_DEBUG=WARN python3 "$folder/log.py" "$(nccl_library "$release")" |
        awk '/xxx/ { print "line: " (length() > 3000 ? "longer than 3000" : "cut to " length()) } /^last/')
    compare "NCCL $release" "$seen" "line: $line
last error: 1023"
done
exit "$status"
