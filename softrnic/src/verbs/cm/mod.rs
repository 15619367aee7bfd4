//! `librdmacm.so.1`: connections by IP addresses, for programs that make theirs so.
//!
//! The library is `libibverbs.so.1` by another name, a symbolic link; its versions of symbols are
//! those of librdmacm. There is no kernel behind it that manages connections. A listener is a
//! socket of the local domain, which is named after the fabric and the port, and a connection is
//! one such socket for each connection of queue pairs, by which both ends say what the messages of
//! the InfiniBand connection manager say (REQ, REP, RTU, REJ, DREQ). A thread looks at these
//! sockets; a peer that dies closes its own.
//!
//! ```text
//! absent        names that are there and refuse
//! id            identifiers and event channels: creation, state, sockets, events, options
//! resolve       rdma_getaddrinfo, bind_addr, resolve_addr, resolve_route; which device has an address
//! connect       listen, connect, accept, reject, disconnect; the thread, and the messages of peers
//! queue_pair    queue pairs of identifiers, and their states
//! ```

mod absent;
mod connect;
mod id;
mod queue_pair;
mod resolve;
