"""dlslime: one endpoint reads from and writes into the memory of another, over two queue pairs, and sends an immediate."""

import two_ends
from dlslime import RDMAEndpoint

SIZE = 4 << 20
IMMEDIATE = 4711


def endpoint(device: str, peer: two_ends.Peer) -> tuple[RDMAEndpoint, two_ends.Buffer, int, int]:
    """A connected endpoint, its buffer, and the handles of this buffer and of the other end's."""
    made = RDMAEndpoint(device, 1, "RoCE", 2)
    buffer = two_ends.Buffer(SIZE)
    local = made.register_memory_region("buffer", buffer.address, 0, SIZE)
    peer.send((made.endpoint_info(), made.mr_info()))
    info, regions = two_ends.receive(peer)
    made.connect(info)
    remote = made.register_remote_memory_region("buffer", regions["buffer"])
    peer.send("connected")
    two_ends.receive(peer)
    return made, buffer, local, remote


def requester(peer: two_ends.Peer) -> None:
    made, buffer, local, remote = endpoint("softrnic0", peer)
    buffer.write(two_ends.content(1, SIZE))
    whole = [(local, remote, 0, 0, SIZE)]
    made.write(whole, None).wait()
    peer.send("written")
    two_ends.receive(peer)
    made.read(whole, None).wait()
    two_ends.compare("read", buffer.read(), two_ends.content(2, SIZE))
    buffer.write(two_ends.content(3, SIZE))
    peer.send("read")
    two_ends.receive(peer)
    made.write_with_imm(whole, IMMEDIATE, None).wait()
    two_ends.receive(peer)
    two_ends.check_traffic(3 * SIZE)
    peer.send("done")


def responder(peer: two_ends.Peer) -> None:
    made, buffer, local, remote = endpoint("softrnic1", peer)
    two_ends.receive(peer)
    two_ends.compare("write", buffer.read(), two_ends.content(1, SIZE))
    buffer.write(two_ends.content(2, SIZE))
    peer.send("read it")
    two_ends.receive(peer)
    arrival = made.imm_recv(None)
    peer.send("send the immediate")
    arrival.wait()
    if arrival.imm_data() != IMMEDIATE:
        raise SystemExit(f"the immediate is {arrival.imm_data()}, not {IMMEDIATE}")
    two_ends.compare("write with immediate", buffer.read(), two_ends.content(3, SIZE))
    peer.send("arrived")
    two_ends.receive(peer)


if __name__ == "__main__":
    two_ends.run(requester, responder)
