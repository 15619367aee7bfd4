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
//! create        rdma_create_id, create_ep, set_option
//! resolve       rdma_getaddrinfo, bind_addr, resolve_addr, resolve_route
//! connect       listen, connect, accept, reject, disconnect
//! events        what the application gets for what has happened; calls that wait
//! queue_pair    queue pairs of identifiers, and their states
//! service       the thread that looks at sockets
//! id            an identifier and its state
//! message       messages of peers, and their sockets
//! place         which device has an address
//! ```

mod absent;
mod connect;
mod create;
mod events;
mod id;
mod message;
mod place;
mod queue_pair;
mod resolve;
mod service;
