"""nixl: one agent writes into the memory of another over UCX's rc_verbs, reads from it, and notifies it."""

import time

import two_ends
from nixl_cu12._api import nixl_agent, nixl_agent_config

SIZE = 4 << 20


def agent(name: str) -> nixl_agent:
    return nixl_agent(name, nixl_agent_config(backends=["UCX"]))


def transfer(made: nixl_agent, kind: str, local: list, remote: list, other: str) -> None:
    handle = made.initialize_xfer(kind, made.get_xfer_descs(local, "DRAM"), made.get_xfer_descs(remote, "DRAM"), other, b"done")
    state = made.transfer(handle)
    until = time.monotonic() + two_ends.PATIENCE
    while state == "PROC" and time.monotonic() < until:
        state = made.check_xfer_state(handle)
    if state != "DONE":
        raise SystemExit(f"{kind}: {state}")
    made.release_xfer_handle(handle)


def requester(peer: two_ends.Peer) -> None:
    made = agent("first")
    buffer = two_ends.Buffer(SIZE)
    made.register_memory([(buffer.address, SIZE, 0, "")], "DRAM")
    metadata, address = two_ends.receive(peer)
    other = made.add_remote_agent(metadata)
    peer.send(made.get_agent_metadata())
    two_ends.receive(peer)
    local, remote = [(buffer.address, SIZE, 0)], [(address, SIZE, 0)]
    buffer.write(two_ends.content(1, SIZE))
    transfer(made, "WRITE", local, remote, other)
    two_ends.receive(peer)
    transfer(made, "READ", local, remote, other)
    two_ends.compare("read", buffer.read(), two_ends.content(2, SIZE))
    two_ends.check_traffic(2 * SIZE)
    peer.send("done")
    two_ends.receive(peer)


def responder(peer: two_ends.Peer) -> None:
    made = agent("second")
    buffer = two_ends.Buffer(SIZE)
    made.register_memory([(buffer.address, SIZE, 0, "")], "DRAM")
    peer.send((made.get_agent_metadata(), buffer.address))
    made.add_remote_agent(two_ends.receive(peer))
    peer.send("ready")
    until = time.monotonic() + two_ends.PATIENCE
    while not made.get_new_notifs():
        if time.monotonic() > until:
            raise SystemExit("no notification")
    two_ends.compare("write", buffer.read(), two_ends.content(1, SIZE))
    buffer.write(two_ends.content(2, SIZE))
    peer.send("read it")
    two_ends.receive(peer)
    peer.send("done")


if __name__ == "__main__":
    two_ends.run(requester, responder)
