//! `librdmacm.so.1`: connections by IP addresses, for programs that make theirs so.
//!
//! The library is `libibverbs.so.1` by another name, a symbolic link; its versions of symbols are those of librdmacm. There is no kernel
//! behind it that manages connections. A listener is a socket of the local domain, which is named after the fabric and the port, and a
//! connection is one such socket for each connection of queue pairs, by which both ends say what the messages of the InfiniBand
//! connection manager say (REQ, REP, RTU, REJ, DREQ). A thread looks at these sockets; a peer that dies closes its own.
//!
//! ```text
//! absent        names that are there and refuse
//! addrinfo      rdma_getaddrinfo
//! identifier    create, destroy, migrate, options
//! connect       listen, connect, accept, reject, disconnect
//! resolve       bind_addr, resolve_addr, resolve_route
//! event         event channels, as the application sees them; what it means to fetch an event
//! queue_pair    queue pairs of identifiers, and their states
//! service       the thread, and what the messages of peers mean
//! id            identifiers: state, sockets, events
//! channel       event channels
//! binding       what an identifier has once its device is known
//! devices       devices that are opened once for the process
//! address       which addresses there are, and which device has them
//! socket        sockets of the local domain
//! message       what is said
//! ```

mod absent;
mod address;
mod addrinfo;
mod binding;
mod channel;
mod connect;
mod devices;
mod event;
mod id;
mod identifier;
mod message;
mod queue_pair;
mod resolve;
mod service;
mod socket;
