#!/usr/bin/env bash
# NIXL accepts every parameter of its UCX backend and reads few. The one that it lists, ucx_devices, restricts nothing; device_list does.
#
# One expects: get_plugin_params("UCX") lists the parameters with their names. A parameter that does not exist is an error.
# What happens: the list has ucx_devices, but create_backend with ucx_devices=no_such_device succeeds, as with any misspelt name. The name that
#   counts is device_list, which is not in the list. NIXL adds `:1` to each of its devices. So device_list=lo, or any other network interface,
#   is refused: UCX knows lo, not lo:1.
# What follows: a process that should use one card uses all of them, and no message says so. Use device_list for RDMA devices, and
#   UCX_NET_DEVICES for TCP.
#
# Seen with nixl-cu12 1.5.1, which brings UCX.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

python3 -m pip install --quiet --no-deps --target "$folder/nixl" nixl-cu12==1.5.1 numpy==2.2.6 2>/dev/null
cat >"$folder/parameters.py" <<'PYTHON'
import ast
import os
import sys

from nixl_cu12._api import nixl_agent, nixl_agent_config

agent = nixl_agent("one", nixl_agent_config(backends=[]))
print("listed:", *sorted(agent.get_plugin_params("UCX")))
try:
    agent.create_backend("UCX", ast.literal_eval(sys.argv[1]))
    print("accepted")
except Exception as error:
    print(type(error).__name__)
sys.stdout.flush()
os._exit(0)
PYTHON
seen=$(for parameters in "{}" "{'ucx_devices': 'no_such_device'}" "{'ucx_devixes': 'no_such_device'}" "{'device_list': 'no_such_device'}" \
    "{'device_list': 'lo'}"; do
    output=$(env -u UCX_NET_DEVICES -u UCX_TLS PYTHONPATH="$folder/nixl" python3 "$folder/parameters.py" "$parameters" 2>&1) || true
    [ "$parameters" != "{}" ] || grep -o '^listed:.*' <<<"$output"
    echo "$parameters: $(grep -oE '^accepted|^nixl[A-Za-z]*Error' <<<"$output" || true)" \
        "$(grep -o "network device '[^']*' is not available" <<<"$output" | sort -u || true)"
done | sed 's/ *$//')
compare "nixl-cu12 1.5.1" "$seen" "listed: num_workers ucx_devices ucx_error_handling_mode
{}: accepted
{'ucx_devices': 'no_such_device'}: accepted
{'ucx_devixes': 'no_such_device'}: accepted
{'device_list': 'no_such_device'}: nixlBackendError network device 'no_such_device:1' is not available
{'device_list': 'lo'}: nixlBackendError network device 'lo:1' is not available"
exit "$status"
