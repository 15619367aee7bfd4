#!/usr/bin/env bash
# NCCL does not accept every well-formed XML file as a topology file: an XML declaration, a tab or a line break in a tag ends the job.
#
# One expects: NCCL_TOPO_FILE accepts XML, so `xmllint --format`, an editor or a template engine may write it.
# What happens: NCCL has its own parser, which accepts what NCCL_TOPO_DUMP_FILE writes and little else. It refuses `<?xml
#   version="1.0"?>`, a document type, tabs between elements, an attribute on a line of its own, and blanks around `=`. 2.21.5 refuses
#   single quotes too. The result is an internal error (3), with which ncclCommInitRank fails. An empty file is a success.
# What follows: begin with `<system`, indent with blanks, and keep a tag on one line. The error ("expected >, got '?'") names neither the
#   file nor the line.
#
# Seen with nvidia-nccl-cu12 2.21.5 and 2.32.3, by the function that reads the file.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/topology.py" <<'P'
import ctypes, sys
from nccl import Nccl, in_child

nccl = Nccl(sys.argv[1])
path = sys.argv[2]
good = """<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <nic>
      <net name="a" dev="0" speed="100000"/>
    </nic>
  </cpu>
</system>
"""


def read() -> str:
    space = ctypes.create_string_buffer(8 << 20)
    ctypes.cast(space, ctypes.POINTER(ctypes.c_int))[1] = 64  # nodes that there is room for
    result = nccl.function("ncclTopoGetXmlFromFile", ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int)(
        path.encode(), space, 1
    )
    return f"result {result}" + (f", {nccl.last_error()!r}" if result else "")


for name, text in {
    "as NCCL writes it": good,
    "with a declaration": '<?xml version="1.0" encoding="UTF-8"?>\n' + good,
    "with a document type": "<!DOCTYPE system>\n" + good,
    "indented by tabs": good.replace("  ", "\t"),
    "an attribute on a line of its own": good.replace(" affinity", "\n    affinity"),
    "blanks around =": good.replace('version="1"', 'version = "1"'),
    "single quotes": good.replace('"', "'"),
    "a comment": "<!-- rack 7 -->\n" + good,
    "empty": "",
}.items():
    with open(path, "w") as file:
        file.write(text)
    print(f"{name}: {in_child({}, read)}")
P
for release in 2.21.5 2.32.3; do
    nccl_get "$release"
    case $release in 2.21.5) quotes="result 3, 'XML Parse : Unexpected EOF'" ;; *) quotes="result 0" ;; esac
    compare "NCCL $release" "$(python3 "$folder/topology.py" "$(nccl_library "$release")" "$folder/topology.xml")" \
        "as NCCL writes it: result 0
with a declaration: result 3, \"XML Parse : expected >, got '?'\"
with a document type: result 3, 'XML Parse : unterminated '
indented by tabs: result 3, \"XML Parse error : expecting '<', got '\\t'\"
an attribute on a line of its own: result 3, \"XML Parse : expected >, got '\\n'\"
blanks around =: result 3, 'XML Parse : Expected (double) quote.'
single quotes: $quotes
a comment: result 0
empty: result 0"
done
exit "$status"
