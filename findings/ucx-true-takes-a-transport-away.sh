#!/usr/bin/env bash
# UCX_TCP_NODELAY=true takes TCP away from UCX: y, yes, on and 1 are true, but `true` is not, and a wrong word disables the whole
# transport.
#
# One expects: `true` is a truth value, as for libfabric; or the setting is refused and the default stays.
# What happens: true, false, enable and the like are "Invalid value … Expected: <y|n>". UCX reads the settings of a transport as a whole.
#   One wrong word leaves none of them, and the transport is not there. The message goes to standard output, and the exit status of
#   ucx_info is 0.
# What follows: a job uses another transport, or ends with an error about missing transports that names neither the variable nor the word.
#   Write y and n.
#
# Seen with UCX 1.22.0 of libucx-cu12, over the network of this machine.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

python3 -m pip install --quiet --no-deps --target "$folder/ucx" libucx-cu12==1.22.0 2>/dev/null
chmod +x "$folder/ucx/libucx/bin/ucx_info"
seen=$(for word in y yes on 1 n off true True false enable; do
    output=$(env UCX_TCP_NODELAY=$word LD_LIBRARY_PATH="$folder/ucx/libucx/lib" "$folder/ucx/libucx/bin/ucx_info" -d 2>/dev/null) || output="status $?"
    lines=$(grep -c "Transport: tcp" <<<"$output") || true
    told=$(grep -o "Invalid value for NODELAY.*" <<<"$output" | head -1) || true
    echo "$word: $([ "$lines" -gt 0 ] && echo tcp || echo no tcp)${told:+; $told}"
done)
compare "UCX 1.22.0" "$seen" "y: tcp
yes: tcp
on: tcp
1: tcp
n: tcp
off: tcp
true: no tcp; Invalid value for NODELAY: 'true'. Expected: <y|n>
True: no tcp; Invalid value for NODELAY: 'True'. Expected: <y|n>
false: no tcp; Invalid value for NODELAY: 'false'. Expected: <y|n>
enable: no tcp; Invalid value for NODELAY: 'enable'. Expected: <y|n>"
exit "$status"
