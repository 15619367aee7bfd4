#!/usr/bin/env bash
# Builds everything and fills dist/:
#   dist/lib/libnccl-net.so          the plugin, and the link libnccl-net-ferrite.so
#   dist/softrnic/libibverbs.so.1    the software RDMA device, and the link libibverbs.so
#   dist/bin/ferrite                 the companion
#   dist/bin/softrnic                runs programs on the software device, and controls its network
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

cargo build --release --workspace --locked --quiet
release=$CARGO_TARGET_DIR/release

# By rename, so that a process that has the old file mapped keeps it.
put() {
    mkdir -p "$(dirname "$2")"
    cp "$1" "$2.new"
    mv "$2.new" "$2"
}
put "$release/libnccl_net.so" dist/lib/libnccl-net.so
ln -sfn libnccl-net.so dist/lib/libnccl-net-ferrite.so
put "$release/libibverbs.so" dist/softrnic/libibverbs.so.1
ln -sfn libibverbs.so.1 dist/softrnic/libibverbs.so
put "$release/ferrite" dist/bin/ferrite
put "$release/softrnic" dist/bin/softrnic
echo "built: dist/lib/libnccl-net.so dist/softrnic/libibverbs.so.1 dist/bin/ferrite dist/bin/softrnic"
