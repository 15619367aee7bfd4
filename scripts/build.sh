#!/usr/bin/env bash
# Builds everything and fills dist/:
#   dist/lib/libnccl-net.so          the plugin, and the link libnccl-net-ferrite.so
#   dist/softrnic/libibverbs.so.1    the software RDMA device, and the link libibverbs.so
#   dist/softrnic-tools/             the same for RDMA tools (ibv_devinfo, perftest); not for NCCL
#   dist/bin/ferrite                 the companion
#   dist/bin/softrnic                runs programs on the software device, and controls its network
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
setup_build

cargo build --release --workspace --locked --quiet
release=$CARGO_TARGET_DIR/release
# In a folder of its own, since the file has the same name.
cargo build --release -p softrnic --features tools --target-dir "$CARGO_TARGET_DIR/tools" \
    --locked --quiet

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
put "$CARGO_TARGET_DIR/tools/release/libibverbs.so" dist/softrnic-tools/libibverbs.so.1
ln -sfn libibverbs.so.1 dist/softrnic-tools/libibverbs.so
put "$release/ferrite" dist/bin/ferrite
put "$release/softrnic" dist/bin/softrnic
echo "built: dist/lib/libnccl-net.so dist/softrnic/libibverbs.so.1 dist/softrnic-tools/libibverbs.so.1 dist/bin/ferrite dist/bin/softrnic"
