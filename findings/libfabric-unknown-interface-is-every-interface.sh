#!/usr/bin/env bash
# FI_TCP_IFACE with a name that does not exist, or with two names, restricts nothing: libfabric's tcp provider uses every interface.
#
# One expects: a misspelt interface is an error or leaves no interface, as for NCCL and UCX. Two names with a comma are a list.
# What happens: the value is one name, compared with each interface as a whole. If none is equal, the provider offers all of them. So does
#   FI_UDP_IFACE for udp. The log says so at level info only: at warn there is no line.
# What follows: traffic leaves by another network than the one that was asked for, on those hosts alone where the name differs. Look at the
#   domains in the output of fi_info with the same variables.
#
# Seen with libfabric 2.1.0 of Debian, in a network namespace with the interfaces a0 and b0.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/debian.sh
. "$here/debian.sh"

cat >"$folder/inside.sh" <<'SH'
. "$1"
folder=$2
for which in all default; do [ ! -e /proc/sys/net/ipv6 ] || echo 1 >"/proc/sys/net/ipv6/conf/$which/disable_ipv6"; done
ip link set lo up
for name in a0 b0; do
    ip link add "$name" type veth peer name "${name}x"
    ip link set "$name" up
    ip link set "${name}x" up
done
ip address add 192.0.2.1/25 dev a0
ip address add 192.0.2.129/25 dev b0
for value in a0 a0,b0 A0 none0; do
    for provider in tcp udp; do
        setting=FI_${provider^^}_IFACE=$value
        echo "$setting:" $(debian_run "$folder" "$setting" /usr/bin/fi_info -p "$provider" | sed -n 's/^ *domain: //p' | sort -u)
    done
done
for level in warn info; do
    lines=$(debian_run "$folder" FI_TCP_IFACE=none0 "FI_LOG_LEVEL=$level" /usr/bin/fi_info -p tcp 2>&1 | grep -c 'unknown interface')
    echo "at level $level: $([ "$lines" -gt 0 ] && echo a line || echo no line)"
done
SH
debian_get trixie "$folder/trixie" libc6 libgcc-s1 libstdc++6 zlib1g libnl-3-200 libnl-route-3-200 libibverbs1 ibverbs-providers librdmacm1t64 \
    libpsm-infinipath1 libpsm2-2 libnuma1 libatomic1 libuuid1 libfabric1=2.1.0-1.1 libfabric-bin=2.1.0-1.1 || { echo "no libfabric 2.1.0"; exit 2; }
compare "libfabric 2.1.0" "$(unshare --user --map-root-user --net bash "$folder/inside.sh" "$here/debian.sh" "$folder/trixie")" \
    "FI_TCP_IFACE=a0: a0
FI_UDP_IFACE=a0: a0
FI_TCP_IFACE=a0,b0: a0 b0 lo
FI_UDP_IFACE=a0,b0: a0 b0 lo
FI_TCP_IFACE=A0: a0 b0 lo
FI_UDP_IFACE=A0: a0 b0 lo
FI_TCP_IFACE=none0: a0 b0 lo
FI_UDP_IFACE=none0: a0 b0 lo
at level warn: no line
at level info: a line"
exit "$status"
