# shellcheck shell=bash disable=SC2154
# A stand-in for libibverbs (fabric.c), and programs that use it with NCCL. It needs a C compiler
# and apt-get with a mirror of Debian.
# shellcheck source=debian.sh
. "$here/debian.sh"

# fabric_get: builds $folder/fabric/libibverbs.so.1 with the headers of Debian 12.
fabric_get() {
    debian_get bookworm "$folder/bookworm" libibverbs-dev=44.0-2 || { echo "no libibverbs-dev 44.0-2"; exit 2; }
    mkdir -p "$folder/fabric"
    printf 'IBVERBS_1.0 {};\nIBVERBS_1.1 { global: ibv_*; local: *; } IBVERBS_1.0;\n%s\n%s\n' \
        'IBVERBS_1.8 { global: ibv_reg_mr_iova2; } IBVERBS_1.1;' 'IBVERBS_1.12 { global: ibv_reg_dmabuf_mr; } IBVERBS_1.8;' >"$folder/fabric/versions"
    cc -O1 -w -shared -fPIC -I "$folder/bookworm/tree/usr/include" -Wl,-soname,libibverbs.so.1 -Wl,--version-script="$folder/fabric/versions" \
        -o "$folder/fabric/libibverbs.so.1" "$here/fabric.c"
    # NCCL looks for this name first.
    ln -s libibverbs.so.1 "$folder/fabric/libibverbs.so"
}

# fabric_run RELEASE [VARIABLE=VALUE]...: runs the program on its standard input with that release's library as its argument.
fabric_run() {
    local library
    library=$(nccl_library "$1")
    shift
    env LD_LIBRARY_PATH="$folder/fabric" NCCL_SOCKET_IFNAME=lo "$@" python3 - "$library"
}
