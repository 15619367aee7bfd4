"""The package ibverbs: RDMA WRITE, READ, fetch-and-add, and SEND with an event, between two processes."""

import select

import ibverbs as ib
import two_ends

SIZE = 1 << 20
ACCESS = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE | ib.AccessFlags.REMOTE_READ | ib.AccessFlags.REMOTE_ATOMIC
GID_INDEX = 1


class End:
    def __init__(self, peer: two_ends.Peer, device: int) -> None:
        self.peer = peer
        self.context = ib.get_device_list()[device].open()
        self.domain = self.context.alloc_pd()
        self.channel = self.context.create_comp_channel()
        self.completions = self.context.create_cq(64, channel=self.channel)
        self.buffer = two_ends.Buffer(SIZE)
        self.region = self.domain.reg_mr(self.buffer.address, SIZE, ACCESS)
        self.queue_pair = self.domain.create_qp(ib.QPInitAttr(send_cq=self.completions, recv_cq=self.completions, qp_type=ib.QPType.RC))
        local = ib.local_qp_info(self.queue_pair, self.context.query_port(1), self.context.query_gid(1, GID_INDEX), port=1, psn=7)
        peer.send((local.to_bytes(), self.buffer.address, self.region.rkey))
        remote, self.remote_address, self.remote_key = two_ends.receive(peer)
        ib.connect_rc(self.queue_pair, ib.QPInfo.from_bytes(remote), port=1, sgid_index=GID_INDEX, access=ACCESS, local_psn=7)

    def is_ready(self) -> None:
        self.peer.send("ready")
        two_ends.receive(self.peer)

    def wait_for_completion(self) -> None:
        while not (found := self.completions.poll(1)):
            pass
        found[0].raise_for_status()

    def post(self, opcode: ib.WROpcode, size: int, **more: int) -> None:
        self.queue_pair.post_send(
            ib.SendWR(
                sg_list=[ib.SGE(self.region, size)],
                opcode=opcode,
                send_flags=ib.SendFlags.SIGNALED,
                remote_addr=self.remote_address,
                rkey=self.remote_key,
                **more,
            )
        )
        self.wait_for_completion()


def requester(peer: two_ends.Peer) -> None:
    end = End(peer, 0)
    end.is_ready()
    end.buffer.write(two_ends.content(1, SIZE))
    end.post(ib.WROpcode.RDMA_WRITE, SIZE)
    end.is_ready()
    end.is_ready()
    end.post(ib.WROpcode.RDMA_READ, SIZE)
    two_ends.compare("RDMA READ", end.buffer.read(), two_ends.content(2, SIZE))
    end.post(ib.WROpcode.ATOMIC_FETCH_AND_ADD, 8, compare_add=5)
    two_ends.compare("fetch-and-add returns", end.buffer.read()[:8], two_ends.content(2, SIZE)[:8])
    end.is_ready()
    end.is_ready()
    end.post(ib.WROpcode.SEND, 4096)
    two_ends.check_traffic(2 * SIZE)
    end.is_ready()


def responder(peer: two_ends.Peer) -> None:
    end = End(peer, 1)
    end.is_ready()
    end.is_ready()
    two_ends.compare("RDMA WRITE", end.buffer.read(), two_ends.content(1, SIZE))
    end.buffer.write(two_ends.content(2, SIZE))
    end.is_ready()
    end.is_ready()
    before = two_ends.content(2, SIZE)[:8]
    after = (int.from_bytes(before, "little") + 5) % (1 << 64)
    two_ends.compare("fetch-and-add adds", end.buffer.read()[:8], after.to_bytes(8, "little"))
    end.completions.req_notify()
    end.queue_pair.post_recv(ib.RecvWR(sg_list=[ib.SGE(end.region, 4096)]))
    end.is_ready()
    if not select.select([end.channel.fd], [], [], two_ends.PATIENCE)[0]:
        raise SystemExit("no event on the completion channel")
    end.wait_for_completion()
    two_ends.compare("SEND", end.buffer.read()[:8], before)
    end.is_ready()


if __name__ == "__main__":
    two_ends.run(requester, responder)
