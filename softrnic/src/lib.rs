//! softrnic: a software RDMA device behind `libibverbs.so.1`.
//!
//! Put the folder with this library (under both names, `libibverbs.so` and `libibverbs.so.1`) into
//! `LD_LIBRARY_PATH`, and programs written for RDMA verbs find devices `softrnic0`, `softrnic1`, …
//! that carry data between the processes of one user on one host. No kernel support, no root. It
//! exists to try and to test such programs without a NIC; it is not for production traffic, and
//! says so when it starts.
//!
//! # Map
//!
//! ```text
//!   application          ibv_* by symbol version, or through the table in ibv_context
//!        │
//!   verbs                pointers in, errno out; attaches this process to its fabric
//!        │
//!   faults               a hook around the engine: injects the faults of the rules in force
//!        │
//!   engine               works off send queues. requester, datagrams, receive, modify
//!        │
//!   objects              context, pd, mr, cq, channel, qp with its queues: as the application holds them
//!        │
//!   remote               at the peer's queue pair: guard, keys, responder, atomics, staged transfers     control: changes
//!        │                                                                                               and reports a fabric
//!   copy                 bytes between processes, within one, from and to a GPU                                │
//!        │                                                                                                     │
//!   process              fabric: one process's view of it. settings, liveness, tables, routes, timers, event log
//!        │
//!   rules                fault rules: their language, and the table of those in force
//!        │
//!   network              topology, ports, links, GIDs
//!        │
//!   shm                  one shared file: its locks, its layout, its entries
//!        │
//!   drivers              of real cards: what their devices grant, and how they refuse
//!        │
//!   abi host limits      numbers and structures of verbs; the machine; what there can be at most
//! ```
//!
//! A layer uses those below it and none above; no file uses another in a circle.
//!
//! The process that posts a request also executes it, on both sides, before the post returns: it
//! checks its own queue, enters the peer's queue pair in shared memory, checks keys and access
//! there, moves the bytes with one `process_vm_writev`, takes the peer's receive and completes both
//! ends. The target process is passive, as it is with a NIC. Nothing on this path waits for another
//! process, so one that is killed or stopped does not hold up the data of others (but for UD, where
//! senders to one queue pair wait for each other for up to a second); only creating and destroying
//! objects takes a lock that a *stopped* process can hold.
//!
//! Where a peer's memory cannot be reached – a GPU's, or that of a process in another sandbox – the
//! bytes are staged in the shared file, and each process copies its own memory, in its polls or in
//! its service thread.
//!
//! # What is modelled
//!
//! | subject | behaviour |
//! |---|---|
//! | devices | 1 to 8, of one or two ports; each is one NIC that all processes share. The first process of a fabric decides what they are like |
//! | ports | RoCE or InfiniBand, or of no link layer that is reported, 5 to 800 Gb/s, MTU 256 to 4096; live values, kept in the fabric |
//! | GIDs | RoCE: `[0]` link-local, `[1]` IPv4-mapped `10.82.<port>.<device + 1>`, both v2; or rich: pairs of v1 and v2 of these and of a global IPv6 address. InfiniBand: the subnet prefix and the port's GUID |
//! | address vectors | RoCE: global, from an entry that is not empty, in one address family (`EINVAL`), to a port that exists and is up (`ETIMEDOUT`). InfiniBand: by LID, to any |
//! | RC | WRITE, WRITE_WITH_IMM, SEND, SEND_WITH_IMM, READ, FETCH_ADD, CMP_SWP; inline; gather and scatter lists of 16 |
//! | UC | WRITE and SEND, loses silently |
//! | UD | SEND by address handles, up to the MTU; 40 bytes of network header in front of what is received; Q_Keys; drops silently |
//! | SRQ | receives that queue pairs of RC, UC and UD share; its limit is an event |
//! | states | all seven, with exact masks; ERR flushes both queues, RESET discards silently. SQD finishes what was sent and begins nothing (`SQ_DRAINED`), an error of UC leads to SQE. The first message in RTR raises an event (`COMM_EST`) |
//! | addressing | a packet arrives if both ports are up, the source entry is still there, the target has that GID *in the same RoCE version* (or that LID), packets are no larger than either port's MTU, and the QPN there is one in RTR or RTS, connected back to the sender's port and QPN, with the right PSN |
//! | order | per QP; a receive completes after all data before it; within a message of up to 256 bytes they appear word by word in ascending order, of a longer one the last word after the rest; see `SOFTRNIC_LINES` |
//! | local checks | key, protection domain, bounds, access: `LOC_PROT_ERR` |
//! | remote checks | the same: `REM_ACCESS_ERR`, at the responder ERR and `QP_ACCESS_ERR`; none for zero bytes, unless `SOFTRNIC_ZERO_KEYS` says so |
//! | QP access flags, short receive | `REM_INV_REQ_ERR`, at the responder ERR and `QP_REQ_ERR` (`LOC_LEN_ERR` on the receive) |
//! | memory unmapped after registration | `LOC_PROT_ERR` or `REM_OP_ERR` between processes |
//! | no receive posted | waits of `min_rnr_timer`, `rnr_retry` times (7: for ever), then `RNR_RETRY_EXC_ERR` |
//! | no answer (wrong PSN, peer gone, dead, reset) | sent `retry_cnt + 1` times, 4.096 µs · 2^`timeout` apart, then `RETRY_EXC_ERR`; the peer gets no event |
//! | send queue | a slot is free when a later signaled completion was polled; full: `ENOMEM`, `bad_wr` set |
//! | completion queue | overrun: `CQ_ERR`, the CQ takes nothing more and its QPs fail |
//! | keys, QPNs | carry a generation: a stale one is caught (see `SOFTRNIC_QPN_REUSE`); QPNs repeat across devices |
//! | thread domains | parent domains with and without them, and completion queues for a single thread: two threads at once in one end the process |
//! | destruction | `EBUSY` for a PD or CQ in use; deregistration waits for accesses under way; QPs and CQs wait for acknowledgement of their events |
//! | events | `async_fd` and completion channels are pollable and honour `O_NONBLOCK` |
//! | paths | several equal ways between RoCE ports, one of which each queue pair takes by a hash, as in a fabric with ECMP; each slow, lossy or dead by rules (`path=`); see `SOFTRNIC_PATHS` |
//! | port down | packets from and to it vanish until it is up again, but for those of a queue pair to itself (`SOFTRNIC_LOOPBACK_DOWN`); `PORT_ERR`, `PORT_ACTIVE` in every process that has the device open, after the state shows it |
//! | GIDs and LIDs | come, go and change while programs run: `GID_CHANGE`, `LID_CHANGE`; packets by the old ones vanish |
//! | device failed | its QPs go into ERR and flush, `DEVICE_FATAL`, creating and modifying answer `EIO`, peers get no answer; for good, or until it can be opened anew |
//! | fork | the child loses what it inherited (`ENODEV`; destroying does nothing) and may open devices anew |
//! | copies | two copies of the library in one process are two processes of the fabric; what one has made is `ENODEV` to the other |
//!
//! # What is not
//!
//! * XRC, multicast, memory windows, time stamps of completions: `EOPNOTSUPP` or absent. Path
//!   migration. `ibv_create_qp_ex` makes queue pairs for some operations only, to which others
//!   cannot be posted (`EINVAL`).
//! * Data in ascending order between two processes on 64-bit ARM, whose kernel copies without
//!   barriers: a program that polls memory may see the last word of a message before the others.
//! * Kernel devices, and so the driver libraries of the system (libmlx5, libefa, …). Programs that
//!   are linked with them (perftest), and `ibv_devinfo`, load only against the flavour `tools`; see
//!   below.
//! * GPU memory and DMA-BUF, unless `SOFTRNIC_GPU` asks for them: `EOPNOTSUPP`.
//! * Congestion beyond bandwidth that is shared, PCIe. Bandwidth and latency only where they are
//!   asked for: else all goes as fast as the processor copies.
//! * Retransmission within a message: it arrives whole or not at all, unless a fault rule cuts it;
//!   a receive that is missing is noticed before any byte of its message is written, unless
//!   `SOFTRNIC_RNR_PLACES` says otherwise.
//! * Between QPs of one process bytes are moved with plain loads and stores: there, memory that the
//!   application unmaps while it is still registered is a SIGSEGV.
//! * The independence of a NIC from the processor, unless `SOFTRNIC_GPU_HELPER` asks for it: GPU
//!   memory is copied by calls of the CUDA driver. An application that blocks in the driver and
//!   holds it – `cudaFree`, or a copy to pageable memory on the default stream, or loading a kernel
//!   at its first launch – while it waits for a collective whose data passes here waits for ever.
//!   PyTorch's DistributedDataParallel does all of this. A helper is a process of its own with a
//!   driver of its own, which imports the memory and copies meanwhile.
//!
//! # Flavours
//!
//! The library proper has the public symbols only. With the feature `tools` it also has the private
//! ones that libibverbs offers to driver libraries, so that these load, find no device of theirs
//! and stay idle. `ibv_devinfo` and perftest run on this flavour, unmodified. Under NCCL use the
//! other one: there libmlx5 does not load, and NCCL does not look for its features.
//!
//! | tools | |
//! |---|---|
//! | `ibv_devices`, `ibv_devinfo`, `ibv_asyncwatch` | yes |
//! | `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong`, `ibv_srq_pingpong` | yes, with `-g 0` or `-g 1` |
//! | `ib_write_*`, `ib_send_*`, `ib_read_*`, `ib_atomic_*` | yes, RC and UC, `ib_send_*` also UD and `--use-srq`; `-I` is turned off by the tool, which says "Device not recognized to implement inline feature": it goes by a list of vendors, of which softrnic is none |
//! | `rping`, `ucmatose`, `ib_*_bw -R`, `ib_*_lat -R`: connections by IP addresses | yes: this flavour is `librdmacm.so.1`, too |
//! | `ibv_xsrq_pingpong` | ends with a message |
//!
//! docs/clients.md has these and others: UCX, libfabric, pyverbs.
//!
//! # Stock NCCL
//!
//! NCCL's own IB transport runs on these devices. What some of its versions need for it:
//!
//! | NCCL | variable | because |
//! |---|---|---|
//! | 2.21 to 2.30 | `NCCL_IB_MERGE_NICS=0` with two devices or more | without sysfs it cannot tell which belong together |
//! | 2.28.7 to 2.28.9 | `NCCL_GIN_TYPE=0` | looks for a device of mlx5 to start network traffic from GPU kernels; where every device is of another kind it calls through an invalid pointer (SIGSEGV after `Initialized NET plugin IB`). `softrnic run` and `softrnic env` set it for every release, unless it is set: one-sided operations (`ncclPutSignal`) are off then |
//!
//! Under `softrnic run --faithful` it finds their places on the PCI bus, and with `--same-card` or
//! two ports fuses them as it fuses those of a real card. Rich GID tables need that as well: NCCL
//! reads the types from sysfs.
//!
//! # The command line
//!
//! `softrnic run PROGRAM…` runs a program on the device, with `--faithful` so that
//! `/sys/class/infiniband` and `/dev/infiniband` show it as well. A program that is linked with
//! RDMA drivers gets the flavour `tools`. `softrnic port`, `gid`, `fail` and `inject` change the
//! network while programs run, and say what they changed where. They change the fabric that
//! `--fabric` or `SOFTRNIC_FABRIC` names, or else the only one of this user that has a process in
//! the same session. `softrnic stat` shows the network, with `--watch` again and again; [`control`]
//! is the same for programs. `softrnic env` prints the environment that `run` sets, for a shell or
//! for other programs to set it.
//!
//! `softrnic clean` shows the fabrics of this user in which no process takes part any more, and
//! what is in use, and removes the former with `--all` or `--fabric`; `softrnic run` removes those
//! that runs without a name have left. The processes of a fabric hold record locks on its file, at
//! offset 2^40 and beyond: a program that gets them all knows that no process takes part, in
//! whatever process id namespace.
//!
//! | exit status | |
//! |---|---|
//! | 0 | done |
//! | 1 | tried, and failed; or the output could not be written |
//! | 2 | wrong usage, or nothing to try it on: no such fabric, port, program |
//! | 130 | in a shell: interrupted (the process ends by SIGINT) |
//! | of the program | `softrnic run` becomes the program |
//!
//! What `--faithful` shows is the state at the start; it is not kept up to date. It needs a mount
//! namespace, so root or user namespaces.
//!
//! # Settings
//!
//! | variable | values | default |
//! |---|---|---|
//! | `SOFTRNIC_FABRIC` | name of the shared file; processes with the same name are on the same network | `softrnic-<uid>` |
//! | `SOFTRNIC_SHM_DIR` | absolute path of a folder on a tmpfs | `/dev/shm` |
//! | `SOFTRNIC_DEVICES` | 1 to 8 | 2 |
//! | `SOFTRNIC_PORTS` | 1 or 2 for each device | 1 |
//! | `SOFTRNIC_CARD` | 1 or 2 devices on one card: they share the system image GUID | 1 |
//! | `SOFTRNIC_LINK` | `roce`, `ib` or `unspecified` (`IBV_LINK_LAYER_UNSPECIFIED`, as devices have that are neither; addressed like RoCE) | `roce` |
//! | `SOFTRNIC_GIDS` | `plain`, `rich`, or `vlan`: as `plain`, and a VLAN interface on each port adds its link-local GID, which has the same bytes, and its own IPv4 address `10.84.<port>.<device + 1>`. Packets by all entries get through | `plain` |
//! | `SOFTRNIC_DRIVER` | `bnxt_re`, `efa`, `erdma`, `hns`, `ionic`, `irdma`, `mana`, `mlx5`, `rxe`, or `mlx5-cx4`, `mlx5-cx5`, `mlx5-cx6`, `mlx5-cx6dx`, `mlx5-cx7` or `mlx5-cx8`: the devices have the limits of this driver's, and refuse what it refuses, in its way; docs/cards.md. Settings that it has a value for may be given another | none: softrnic's own |
//! | `SOFTRNIC_SPEED` | 5, 10, 20, 25, 40, 50, 56, 100, 200, 400, 800 (Gb/s) | 400 |
//! | `SOFTRNIC_MTU` | 256, 512, 1024, 2048, 4096 | 4096 |
//! | `SOFTRNIC_OLD_SPEED` | 1: ports tell their speed in the attribute of 8 bits alone, where the highest is 100 Gb/s a lane, as a libibverbs does that knows neither `active_speed_ex` nor `ibv_query_port_speed` | 0 |
//! | `SOFTRNIC_PATHS` | 0 to 8: so many equal ways lead from each RoCE port to the others. A queue pair's packets take one, by a hash of both GIDs and of the UDP source port, which follows from the flow label, or from both queue pair numbers where that is 0. 0: the way between ports is not modelled. A queue pair to its own port takes none | 0 |
//! | `SOFTRNIC_PATH_MBS` | 0 to 100000: bandwidth of each path, in MB/s, which all queue pairs that take it from the same port share; 0: no limit | 0 |
//! | `SOFTRNIC_PATH_US` | 0 to 1000000: latency of each path, one way, in microseconds | 0 |
//! | `SOFTRNIC_SPRAY` | 1: the fabric spreads the packets of every queue pair over all paths, as switches and cards with adaptive routing do; messages still arrive in order. Fault rules with `path=`, and `softrnic stat`, go by the hash all the same | 0 |
//! | `SOFTRNIC_QUIET` | 1: no banner | 0 |
//! | `SOFTRNIC_STRICT` | 1: junk in undefined fields of failed completions; data of requests is read 50 µs late | 0 |
//! | `SOFTRNIC_ECE` | options of enhanced connection establishment, as a number; they are agreed on and change nothing. 0: not supported | 0 |
//! | `SOFTRNIC_STAT` | 1: a line at the end of the process with the most objects and registered bytes it has had, and how many pieces of GPU memory by which way | 0 |
//! | `SOFTRNIC_COMMAND_US` | 0 to 100000: how long each command to the card takes, in microseconds: creating, modifying and destroying queue pairs, creating and destroying completion queues, registering and deregistering memory, allocating protection and thread domains. A card carries out the commands of all processes one after the other; `softrnic stat --json` counts them by kind | 0 |
//! | `SOFTRNIC_TIME_SCALE` | factor for all modelled waits | 1 |
//! | `SOFTRNIC_FAULTS` | fault rules, or `@` and a file with them; docs/faults.md is their language | none |
//! | `SOFTRNIC_SEED` | seed of all random decisions | 0 |
//! | `SOFTRNIC_TRACE` | file for a line on each message that a rule applies to | none |
//! | `SOFTRNIC_GPU` | how GPU memory can be registered: `none`, `peermem` (by address), `dmabuf` or `both` | `none` |
//! | `SOFTRNIC_GPU_HELPER` | absolute path of the program `softrnic` (`softrnic run --gpu-helper` sets it): each process that registers GPU memory starts it, and it copies that memory on its behalf, by CUDA's interprocess handles or, for memory of `cuMemCreate`, by a file descriptor, which that has to allow. It takes some hundred MiB of the GPU's memory, and ends with the process | none: the process copies |
//! | `SOFTRNIC_STAGED` | 1: all copies go through the fabric, as where processes may not look into each other | 0 |
//! | `SOFTRNIC_CHAOS` | 1: memory with relaxed ordering is written in no order | 0 |
//! | `SOFTRNIC_LOOPBACK_DOWN` | `answered` or `lost`: what becomes of the packets of a queue pair that is connected with itself while its port is down | `answered` |
//! | `SOFTRNIC_QPN_REUSE` | 1: the number of a queue pair that is destroyed is given to the next one that is created | 0 |
//! | `SOFTRNIC_SILENT_FAILURE` | 1: on a device that has failed nothing completes any more, as with mlx5; else work requests are flushed | 0 |
//! | `SOFTRNIC_ERROR_DROPS` | 1: `ibv_modify_qp` to the error state reports what has completed as flushed, if nobody has polled it, as ionic's provider does; else it completes with success | 0 |
//! | `SOFTRNIC_NETWORK_BITS` | 0 to 32: leading bits in which IPv4 addresses of one network agree; an address of another network cannot be resolved (`ETIMEDOUT`), as where no router joins the two. 0: all ports reach each other | 0 |
//! | `SOFTRNIC_ZERO_KEYS` | 1: WRITEs and READs of no bytes need a valid key, address and access at the peer, as others do; else these are not looked at, as with mlx5. The sending process's | 0 |
//! | `SOFTRNIC_RNR_PLACES` | 1: a WRITE WITH IMMEDIATE of several packets that meets no receive leaves the data of all but its last packet in memory, without a completion, as its packets would; else nothing of it. The sending process's, where copies go directly | 0 |
//! | `SOFTRNIC_STALE_COMPLETIONS` | 1: completions that nobody has polled stay in their queue when their queue pair is destroyed or reset, as on rxe, with its number, which may be another one's by then (`SOFTRNIC_QPN_REUSE`); else they are removed, as mlx5's provider does it | 0 |
//! | `SOFTRNIC_RESOLVE_MS` | 0 to 10000: how long the step to RTR, and `ibv_create_ah`, towards a RoCE address that nobody answers for take until they end with `ETIMEDOUT`, in milliseconds; Linux takes 1000. One that is there by then is found | 0 |
//! | `SOFTRNIC_ENDLESS_RETRIES` | 1: a `retry_cnt` of 7 is endless, as on rxe: a message that gets no answer never fails; else it is sent 8 times | 0 |
//! | `SOFTRNIC_OWN_PORT_DOWN` | what becomes of a reliable queue pair that sends while its own port is down, or whose own address has left its entry of the GID table: `retried` (as if the packets were lost), or `fails` (at once, with `LOC_QP_OP_ERR`, as on rxe). One that sends nothing meanwhile goes on | `retried` |
//! | `SOFTRNIC_FLUSH_ONLY` | 1: what the requester's own device finds wrong (`LOC_LEN_ERR`, `LOC_QP_OP_ERR`, `LOC_PROT_ERR`) is reported as `WR_FLUSH_ERR`, so that no completion tells the reason, as on rxe of Linux 6.12 | 0 |
//! | `SOFTRNIC_GRANT_MORE` | 1: queue pairs get more than they ask for, and more than other settings round up to: 2n + 1 of n work requests, also beyond `max_qp_wr`, 3 elements and up to 64 inline bytes more, though 4294967292 are reported, as by libmlx5 for queue pairs without elements; else what is asked for, or what the driver makes of it | 0 |
//! | `SOFTRNIC_SAME_GUID` | 1: all devices have the node GUID of the first one, as functions of one card may have | 0 |
//! | `SOFTRNIC_THREAD_DOMAINS` | what becomes of who asks for a thread domain, a parent domain or a completion queue for a single thread: `granted`, `absent` (`EOPNOTSUPP`) or `exhausted` (`ENOMEM`) | `granted` |
//! | `SOFTRNIC_LINES` | 1: a reader that sees the last word of an aligned line of 128 bytes sees all that precedes it in its message, as consumers expect that poll flags in the data (NCCL's LL128). The sending process's; processes whose copies are staged need it as receivers. Costs bandwidth: messages of 4 KiB take twice as long, of 64 KiB nine times | 0 |
//! | `SOFTRNIC_MAX_QP`, `_MAX_CQ`, `_MAX_MR` | objects of a device in use, of all processes | 4096, 4096, 16384 |
//! | `SOFTRNIC_MAX_QP_WR` | 1 to 16384 | 16384 |
//! | `SOFTRNIC_MAX_INLINE` | most inline bytes of a work request, 0 to 1024 | 1024 |
//! | `SOFTRNIC_INLINE_EXCESS` | what `ibv_create_qp` does when it is asked for more: `refuse` (`EINVAL`), `silent` (NULL, and errno stays as it was), `grant` (only what there is, which it writes back) | `refuse` |
//!
//! A setting that is wrong is named on standard error, and there are no devices (`EINVAL`). Link,
//! speed and MTU take exceptions for single ports: `SOFTRNIC_SPEED=400,softrnic1/2=100`. From
//! devices to MTU they are those of the fabric: a process that sets none of them takes the fabric
//! as it is, one that sets another value is refused. The rest is each process's own.
//!
//! The processes of a fabric need the same user. In one process id namespace, with permission for
//! `process_vm_writev` (the default outside of sandboxes), they copy directly; else copies are
//! staged, which `softrnic stat` reports. The last process to exit removes the shared file; after a
//! death of all of them the next one to come replaces it.

mod abi;
pub mod control;
mod copy;
mod drivers;
mod engine;
mod faults;
mod host;
mod limits;
mod network;
mod objects;
mod process;
mod remote;
mod rules;
mod shm;
mod verbs;

/// The verbs as functions, and their structures: for a library that has these devices beneath
/// another libibverbs (softrnic/provider).
pub mod calls {
    pub use crate::abi::{qp_ex, types};
    pub use crate::drivers::table::beneath_a_provider;
    pub use crate::verbs::*;

    /// Standard error, errno, and locks.
    pub mod host {
        pub use crate::host::{last_errno, lock, say};
    }

    /// An operation that fails when the card comes to it.
    pub const NO_OPERATION: u32 = u32::MAX;
}
