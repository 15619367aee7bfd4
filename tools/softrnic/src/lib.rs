//! softrnic: a software RDMA device behind `libibverbs.so.1`.
mod abi;
mod context;
mod cq;
mod device;
mod engine;
mod fabric;
mod mr;
mod notice;
mod pd;
mod qp;
mod queue;
mod recv_queue;
mod send_queue;
mod service;
mod settings;
mod shim;
mod transition;
