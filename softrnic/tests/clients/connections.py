"""What programs do with librdmacm that its tools do not: `connections.py NAME` does one of it, and fails by an assertion."""

import ctypes
import errno
import os
import resource
import select
import socket
import struct
import sys
import threading

cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = ctypes.c_void_p
CONNECT_REQUEST, REJECTED, ESTABLISHED, DISCONNECTED = 4, 8, 9, 10
RDMA_PS_TCP = 0x106


class Id(ctypes.Structure):
    """`struct rdma_cm_id`."""


class Event(ctypes.Structure):
    """The beginning of `struct rdma_cm_event`."""

    _fields_ = [("id", ctypes.POINTER(Id)), ("listen_id", ctypes.c_void_p), ("event", ctypes.c_uint), ("status", ctypes.c_int)]


Id._fields_ = [
    ("verbs", ctypes.c_void_p),
    ("channel", ctypes.c_void_p),
    ("context", ctypes.c_void_p),
    ("qp", ctypes.c_void_p),
    ("route", ctypes.c_uint64 * 39),
    ("ps", ctypes.c_int),
    ("port_num", ctypes.c_uint8),
    ("event", ctypes.POINTER(Event)),
    ("send_cq_channel", ctypes.c_void_p),
    ("send_cq", ctypes.c_void_p),
    ("recv_cq_channel", ctypes.c_void_p),
    ("recv_cq", ctypes.c_void_p),
]


def well(call, *arguments):
    assert call(*arguments) == 0, (call.__name__, os.strerror(ctypes.get_errno()))


def address(port):
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton("127.0.0.1") + bytes(8)


def new_id(channel=None):
    made = ctypes.POINTER(Id)()
    well(cm.rdma_create_id, ctypes.c_void_p(channel), ctypes.byref(made), None, RDMA_PS_TCP)
    return made


def listener():
    """One whose calls wait, and its port."""
    made = new_id()
    well(cm.rdma_bind_addr, made, address(0))
    well(cm.rdma_listen, made, 0)
    return made, socket.ntohs(cm.rdma_get_src_port(made))


def request(of):
    child = ctypes.POINTER(Id)()
    well(cm.rdma_get_request, of, ctypes.byref(child))
    return child


def fetch(channel):
    """Takes an event: what it is, and its status."""
    event = ctypes.POINTER(Event)()
    well(cm.rdma_get_cm_event, ctypes.c_void_p(channel), ctypes.byref(event))
    found = (event.contents.event, event.contents.status)
    well(cm.rdma_ack_cm_event, event)
    return found


def client(port):
    """An identifier that has asked for a connection, and its channel. Its calls do not wait."""
    channel = cm.rdma_create_event_channel()
    made = new_id(channel)
    for step in [lambda: cm.rdma_resolve_addr(made, None, address(port), 1000), lambda: cm.rdma_resolve_route(made, 1000)]:
        well(step)
        assert fetch(channel)[1] == 0
    well(cm.rdma_connect, made, None)
    return made, channel


def refuses():
    """The listener's application refuses a request."""
    server, port = listener()
    asked, channel = client(port)
    child = request(server)
    well(cm.rdma_reject, child, None, 0)
    assert fetch(channel) == (REJECTED, 28)
    for each in [child, asked, server]:
        well(cm.rdma_destroy_id, each)


def is_readable(channel):
    """Waits for it."""
    fd = ctypes.cast(channel, ctypes.POINTER(ctypes.c_int)).contents.value
    return bool(select.select([fd], [], [])[0])


def answers(asked, channel):
    """The client says that it is ready."""
    assert fetch(channel)[1] == 0
    well(cm.rdma_establish, asked)


def two_at_once():
    """A second request waits while the first connection is made: each call takes the events of its own identifier."""
    server, port = listener()
    clients = [client(port)]
    assert is_readable(server.contents.channel)
    clients.append(client(port))
    children = []
    for asked, channel in clients:
        child = request(server)
        if not children:
            assert is_readable(server.contents.channel)
        thread = threading.Thread(target=answers, args=(asked, channel))
        thread.start()
        well(cm.rdma_accept, child, None)
        found = child.contents.event.contents
        assert found.event == ESTABLISHED, found.event
        assert ctypes.addressof(found.id.contents) == ctypes.addressof(child.contents)
        thread.join()
        children.append(child)
    for each in [*children, *(asked for asked, _ in clients), server]:
        well(cm.rdma_destroy_id, each)


def connected():
    """Both ends of a connection, the accepting one with calls that wait, the other's channel, and the listener."""
    server, port = listener()
    asked, channel = client(port)
    child = request(server)
    thread = threading.Thread(target=answers, args=(asked, channel))
    thread.start()
    well(cm.rdma_accept, child, None)
    thread.join()
    return child, asked, channel, server


def disconnects_twice():
    """The event of the peer's end is fetched by the first call; for the second there is none to wait for."""
    child, asked, channel, server = connected()
    well(cm.rdma_disconnect, asked)
    assert fetch(channel) == (DISCONNECTED, 0)
    assert is_readable(child.contents.channel)
    well(cm.rdma_disconnect, child)
    assert child.contents.event.contents.event == DISCONNECTED
    assert cm.rdma_disconnect(child) == -1 and ctypes.get_errno() == errno.EINVAL
    for each in [child, asked, server]:
        well(cm.rdma_destroy_id, each)


def ends_beside_a_fork():
    """A forked child holds the sockets of a connection; its end is heard of nevertheless."""
    child, asked, channel, server = connected()
    reading, writing = os.pipe()
    forked = os.fork()
    if forked == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    well(cm.rdma_destroy_id, child)
    assert fetch(channel) == (DISCONNECTED, 0)
    os.close(writing)
    os.waitpid(forked, 0)
    for each in [asked, server]:
        well(cm.rdma_destroy_id, each)


def begins_anew_in_a_fork():
    """A forked child makes connections of its own, when its parent has made some."""
    ends = connected()
    forked = os.fork()
    if forked == 0:
        # What was inherited is given back, and is the parent's all the same.
        well(cm.rdma_destroy_id, ends[0])
        child, asked, _, server = connected()
        for each in [child, asked, server]:
            well(cm.rdma_destroy_id, each)
        os._exit(0)
    assert os.waitpid(forked, 0)[1] == 0
    child, asked, channel, server = ends
    well(cm.rdma_disconnect, asked)
    assert fetch(channel) == (DISCONNECTED, 0)
    for each in [child, asked, server]:
        well(cm.rdma_destroy_id, each)


def has_no_descriptors():
    """What needs a descriptor where there is none: a call says so, and a listener accepts later."""
    server, port = listener()
    channel = cm.rdma_create_event_channel()
    made = new_id(channel)
    for step in [lambda: cm.rdma_resolve_addr(made, None, address(port), 1000), lambda: cm.rdma_resolve_route(made, 1000)]:
        well(step)
        assert fetch(channel)[1] == 0
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, former[1]))
    assert cm.rdma_connect(made, None) == -1 and ctypes.get_errno() == errno.EMFILE
    resource.setrlimit(resource.RLIMIT_NOFILE, former)
    well(cm.rdma_connect, made, None)
    child = request(server)
    for each in [child, made, server]:
        well(cm.rdma_destroy_id, each)


class Init(ctypes.Structure):
    """`struct ibv_qp_init_attr`."""

    _fields_ = [
        ("qp_context", ctypes.c_void_p),
        ("send_cq", ctypes.c_void_p),
        ("recv_cq", ctypes.c_void_p),
        ("srq", ctypes.c_void_p),
        ("max_send_wr", ctypes.c_uint32),
        ("max_recv_wr", ctypes.c_uint32),
        ("max_send_sge", ctypes.c_uint32),
        ("max_recv_sge", ctypes.c_uint32),
        ("max_inline_data", ctypes.c_uint32),
        ("qp_type", ctypes.c_int),
        ("sq_sig_all", ctypes.c_int),
    ]


def makes_no_queue_pair():
    """What was made for a queue pair goes with it, and the caller's structure is as it was."""
    made = new_id()
    well(cm.rdma_bind_addr, made, address(0))
    # Devices here refuse too much inline data without an errno, as some drivers do.
    for receives, entries, inline in [(1 << 30, 1, 0), (1, 1 << 30, 0), (1, 1, 1 << 20)]:
        init = Init(max_send_wr=1, max_recv_wr=receives, max_send_sge=entries, max_recv_sge=1, max_inline_data=inline, qp_type=2)
        ctypes.set_errno(0)
        assert cm.rdma_create_qp(made, None, ctypes.byref(init)) == -1
        assert (init.send_cq, init.recv_cq) == (None, None)
        found = made.contents
        assert [found.send_cq, found.send_cq_channel, found.recv_cq, found.recv_cq_channel] == [None] * 4
    init = Init(max_send_wr=1, max_recv_wr=1, max_send_sge=1, max_recv_sge=1, qp_type=2)
    well(cm.rdma_create_qp, made, None, ctypes.byref(init))
    cm.rdma_destroy_qp(made)
    well(cm.rdma_destroy_id, made)


ALL = [refuses, two_at_once, disconnects_twice, ends_beside_a_fork, begins_anew_in_a_fork]
ALL += [has_no_descriptors, makes_no_queue_pair]
{each.__name__: each for each in ALL}[sys.argv[1]]()
