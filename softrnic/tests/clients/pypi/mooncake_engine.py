"""mooncake-transfer-engine-non-cuda: one engine writes into the memory of another, reads from it, and does both in batches."""

import two_ends
from mooncake.engine import TransferEngine

SIZE = 8 << 20
PIECES = 16


def engine(device: str) -> TransferEngine:
    made = TransferEngine()
    if made.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", device) != 0:
        raise SystemExit(f"no engine on {device}")
    return made


def registered(made: TransferEngine) -> two_ends.Buffer:
    buffer = two_ends.Buffer(SIZE)
    if made.register_memory(buffer.address, SIZE) != 0:
        raise SystemExit("memory is not registered")
    return buffer


def requester(peer: two_ends.Peer) -> None:
    made = engine("softrnic0")
    buffer = registered(made)
    name, address = two_ends.receive(peer)

    def succeeds(what: str, code: int) -> None:
        if code != 0:
            raise SystemExit(f"{what}: {code}")

    buffer.write(two_ends.content(1, SIZE))
    succeeds("write", made.transfer_sync_write(name, buffer.address, address, SIZE))
    peer.send("written")
    two_ends.receive(peer)
    succeeds("read", made.transfer_sync_read(name, buffer.address, address, SIZE))
    two_ends.compare("read", buffer.read(), two_ends.content(2, SIZE))
    # Piece for piece in the reverse order.
    size = SIZE // PIECES
    forward = [buffer.address + at * size for at in range(PIECES)]
    backward = [address + at * size for at in reversed(range(PIECES))]
    succeeds("batch", made.batch_transfer_sync_write(name, forward, backward, [size] * PIECES))
    two_ends.check_traffic(3 * SIZE)
    peer.send("written")
    two_ends.receive(peer)


def responder(peer: two_ends.Peer) -> None:
    made = engine("softrnic1")
    buffer = registered(made)
    peer.send((f"127.0.0.1:{made.get_rpc_port()}", buffer.address))
    two_ends.receive(peer)
    two_ends.compare("write", buffer.read(), two_ends.content(1, SIZE))
    buffer.write(two_ends.content(2, SIZE))
    peer.send("read it")
    two_ends.receive(peer)
    size = SIZE // PIECES
    pieces = [two_ends.content(2, SIZE)[at * size : (at + 1) * size] for at in range(PIECES)]
    two_ends.compare("batch", buffer.read(), b"".join(reversed(pieces)))
    peer.send("done")


if __name__ == "__main__":
    two_ends.run(requester, responder)
