//! The control connections between processes: TCP sockets, who shares them, and what becomes of connections that lose theirs.

pub mod channel;
pub mod connections;
pub mod epoll;
pub mod fork;
pub mod line;
pub mod lines;
pub mod link;
pub mod owners;
pub mod reception;
pub mod redial;
pub mod roll;
pub mod socket;
pub mod stranger;
pub mod watcher;
