//! A port scanner goes over all listeners while a hundred connections come about: each of them
//! works, none is the scanner's.

use crate::common::prelude::*;
use nccl_net::testing::proto::frame::{Frame, Kind};
use nccl_net::testing::proto::handle::HANDLE_BYTES;
use nccl_net::testing::proto::handle::Handle as Address;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const CONNECTIONS: usize = 100;
/// Clients that stay connected, so that each listener has some that send nothing more.
const HELD: usize = 300;

/// What the `n`th client sends.
fn speech(n: usize) -> Vec<u8> {
    let noise = pattern(n, n * 37 % 400);
    let hello = Frame { kind: Kind::Hello, secret: [7; 16], body: noise.clone() }.emit();
    match n % 6 {
        0 => Vec::new(),
        1 => noise,
        2 => hello,
        3 => hello[..n % 32].to_vec(),
        4 => [b"FerrCtl\0".as_slice(), &noise].concat(),
        _ => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    }
}

/// Goes over the ports until `stop`; `calls` counts.
fn scan(ports: &[SocketAddr], stop: &AtomicBool, calls: &AtomicUsize) {
    let mut held = std::collections::VecDeque::new();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        // The port closes once all is over.
        if let Ok(mut stream) = TcpStream::connect(ports[n % ports.len()]) {
            let _ = stream.write_all(&speech(n));
            calls.fetch_add(1, Ordering::Relaxed);
            held.push_back(stream);
        }
        if held.len() > HELD {
            held.pop_front();
        }
    }
}

/// Accepts all of them in turn, at least until the scanner has tried every port. What
/// each brings shows whose it is.
fn accept_all(
    worker: &WorkerCtx,
    mut listeners: Vec<Listener>,
    calls: &AtomicUsize,
) -> Result<Vec<RecvComm>> {
    let mut deadline = worker.deadline("a hundred connections beside a scanner");
    let mut comms: Vec<Option<RecvComm>> = listeners.iter().map(|_| None).collect();
    while comms.iter().any(Option::is_none) || calls.load(Ordering::Relaxed) < 2 * CONNECTIONS {
        for (comm, listener) in comms.iter_mut().zip(&mut listeners) {
            if let Some(another) = listener.accept()? {
                assert!(comm.replace(another).is_none(), "the scanner was accepted");
            }
        }
        deadline.idle()?;
    }
    listeners.into_iter().try_for_each(Listener::close)?;
    Ok(comms.into_iter().flatten().collect())
}

fn connect_all(worker: &WorkerCtx, transport: &Transport, handles: &[u8]) -> Result<Vec<SendComm>> {
    let mut deadline = worker.deadline("a hundred connections beside a scanner");
    let mut handles: Vec<Handle> = handles
        .chunks(HANDLE_BYTES)
        .map(|bytes| Handle(bytes.try_into().expect("a whole handle")))
        .collect();
    let mut comms: Vec<Option<SendComm>> = handles.iter().map(|_| None).collect();
    while comms.iter().any(Option::is_none) {
        for (comm, handle) in comms.iter_mut().zip(&mut handles) {
            if comm.is_none() {
                *comm = transport.connect(1, handle)?;
            }
        }
        deadline.idle()?;
    }
    Ok(comms.into_iter().flatten().collect())
}

/// The end that listens and is scanned: connection `i` brings pattern `i`.
fn listen(worker: &mut WorkerCtx, transport: &Transport) -> Result<()> {
    let (mut handles, mut ports, mut listeners) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let (handle, listener) = transport.listen(0)?;
        ports.push(Address::parse(&handle.0).expect("the plugin's own").address);
        handles.extend_from_slice(&handle.0);
        listeners.push(listener);
    }
    worker.send_bytes(&handles)?;
    let (stop, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let comms = std::thread::scope(|scope| {
        scope.spawn(|| scan(&ports, &stop, &calls));
        let comms = accept_all(worker, listeners, &calls);
        stop.store(true, Ordering::Relaxed);
        comms
    })?;
    for (i, comm) in comms.iter().enumerate() {
        let memory = Arc::new(Buffer::new(4096)?);
        let into = comm.register(&memory)?;
        let mut deadline = worker.deadline("a message");
        let receive = posted(&mut deadline, || comm.receive(&into, 0, 4096, 0))?;
        finished(&mut deadline, receive, &mut [0])?;
        assert!(memory.read(0, 4096)? == pattern(i, 4096), "connection {i}");
    }
    Ok(())
}

fn connect(worker: &mut WorkerCtx, transport: &Transport) -> Result<()> {
    let handles = worker.receive_bytes(CONNECTIONS * HANDLE_BYTES)?;
    for (i, comm) in connect_all(worker, transport, &handles)?.iter().enumerate() {
        let memory = Arc::new(Buffer::new(4096)?);
        memory.write(0, &pattern(i, 4096))?;
        let out = comm.register(&memory)?;
        let mut deadline = worker.deadline("a message");
        let send = posted(&mut deadline, || comm.send(&out, 0, 4096, 0))?;
        finished(&mut deadline, send, &mut [0])?;
    }
    Ok(())
}

#[test]
fn a_hundred_connections_come_about_beside_a_port_scanner() -> Result<()> {
    both(setting(), |worker| {
        let transport = plugin_transport()?;
        match worker.rank() {
            0 => listen(worker, &transport)?,
            _ => connect(worker, &transport)?,
        }
        worker.barrier()
    })
}
