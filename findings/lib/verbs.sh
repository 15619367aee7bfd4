# shellcheck shell=bash disable=SC2154
# rdma-core of a Debian release with a stand-in for a card (card.c): no device and no kernel module is needed, only a C compiler.
# shellcheck source=debian.sh
. "$here/debian.sh"

# verbs_get SUITE VERSION [PACKAGE]...: unpacks rdma-core's libraries of that version, with what they need, other packages, and a fake
# device of each kind.
verbs_get() {
    local suite=$1 version=$2 root=$folder/$1/tree name node modalias
    shift 2
    debian_get "$suite" "$folder/$suite" libc6 libgcc-s1 zlib1g libnl-3-200 libnl-route-3-200 linux-libc-dev \
        "libibverbs1=$version" "ibverbs-providers=$version" "libibverbs-dev=$version" "$@" || { echo "$suite: no rdma-core $version"; exit 2; }
    mkdir -p "$root/card"
    while read -r name node modalias; do
        local verbs=$root/card/${name%_0}/class/infiniband_verbs device=$root/card/${name%_0}/class/infiniband/$name
        mkdir -p "$verbs/uverbs0" "$device/device" "$device/ports/1"
        echo 6 >"$verbs/abi_version"
        echo "$name" >"$verbs/uverbs0/ibdev"
        echo 1:5 >"$verbs/uverbs0/dev" # /dev/zero's numbers
        echo 1 >"$verbs/uverbs0/abi_version"
        echo "$node: A" >"$device/node_type"
        echo "$modalias" >"$device/device/modalias"
    done <<'LIST'
mlx5_0 1 pci:v000015B3d00001021sv0sd0bc02sc07i00
erdma_0 4 pci:v00001DEDd0000107Fsv0sd0bc02sc07i00
irdma_0 1 pci:v00008086d00001592sv0sd0bc02sc00i00
bnxt_re_0 1 pci:v000014E4d00001750sv0sd0bc02sc00i00
ionic_0 1 pci:v00001DD8d00001002sv0sd0bc02sc00i00
LIST
    # Of the unpacked headers these alone are used: the compiler has the C library's own.
    mkdir -p "$folder/include"
    cp -r "$root/usr/include/infiniband" "$root/usr/include/rdma" "$folder/include"
    cc -O1 -w -shared -fPIC -I "$folder/include" -I "$here" -o "$root/card/card.so" "$here/card.c" -ldl
}

# verbs_build SUITE NAME: compiles the program NAME.c of the folder.
verbs_build() {
    cc -O1 -w -rdynamic -DIBVERBS_PROGRAM -I "$folder/include" -I "$here" -o "$folder/$1/tree/card/$2" "$folder/$2.c" \
        -Wl,--allow-shlib-undefined "$folder/$1/tree/usr/lib/$(uname -m)-linux-gnu/libibverbs.so.1" -ldl
}

# verbs_run SUITE CARD [VARIABLE=VALUE]... NAME: runs it on that card: mlx5, erdma, irdma, bnxt_re or ionic.
verbs_run() {
    local suite=$1 card=$2
    shift 2
    debian_run "$folder/$suite" "CARD=$card" "SYSFS_PATH=/card/$card" "${@:1:$#-1}" \
        /lib64/ld-linux-x86-64.so.2 --preload /card/card.so "/card/${*: -1}"
}
