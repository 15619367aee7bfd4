"""peercache: the transport of one node reads pages of another over two devices, and writes them back."""

import two_ends
from peercache.config import PeerCacheConfig
from peercache.transport import RdmaTransport

SIZE = 8 << 20
PAGES = 32
PAGE = SIZE // PAGES


def transport(name: str) -> tuple[RdmaTransport, two_ends.Buffer, list[int]]:
    made = RdmaTransport(
        PeerCacheConfig(discovery_addr="127.0.0.1:1", node_id=name, local_hostname="127.0.0.1", device_names="softrnic0,softrnic1", gid_index=1)
    )
    buffer = two_ends.Buffer(SIZE)
    return made, buffer, made.register_mr(buffer.address, SIZE).rkeys


def requester(peer: two_ends.Peer) -> None:
    made, buffer, _ = transport("first")
    endpoints, keys, address = two_ends.receive(peer)
    local = [buffer.address + at * PAGE for at in range(PAGES)]
    remote = [address + at * PAGE for at in range(PAGES)]
    others = (["second"] * PAGES, local, remote, [PAGE] * PAGES, {"second": endpoints}, {"second": keys})
    if not all(made.batch_read_multi(*others)):
        raise SystemExit("a read has failed")
    two_ends.compare("read", buffer.read(), two_ends.content(1, SIZE))
    buffer.write(two_ends.content(2, SIZE))
    if not all(made.batch_write_multi(*others)):
        raise SystemExit("a write has failed")
    two_ends.check_traffic(2 * SIZE)
    peer.send("written")
    two_ends.receive(peer)


def responder(peer: two_ends.Peer) -> None:
    made, buffer, keys = transport("second")
    buffer.write(two_ends.content(1, SIZE))
    peer.send((made.local_endpoints(), keys, buffer.address))
    two_ends.receive(peer)
    two_ends.compare("write", buffer.read(), two_ends.content(2, SIZE))
    peer.send("done")


if __name__ == "__main__":
    two_ends.run(requester, responder)
