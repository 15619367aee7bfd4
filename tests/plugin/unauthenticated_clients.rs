//! Clients of a listener's port: those that do not follow the protocol are closed, and the peer is
//! served all the same.

use crate::common::handshake::{frame, hello};
use crate::common::prelude::*;
use nccl_net::inspect::PROTOCOL_VERSION;
use nccl_net::testing::proto::frame::{Assembler, Kind};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

#[test]
fn clients_that_do_not_speak_the_protocol_are_closed_and_the_peer_is_served() -> Result<()> {
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let to = address(&handle);
        let mut other_version = frame(Kind::Hello, to.token);
        other_version[8] = 77;
        let mut endless = frame(Kind::Hello, to.token);
        endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let whole = hello(worker, &transport, &to)?;
        let openings: Vec<Vec<u8>> = vec![
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            vec![0; 4096],
            Vec::new(),
            whole[..20].to_vec(),
            whole[..whole.len() - 5].to_vec(),
            other_version,
            endless,
            frame(Kind::Hello, [9; 16]),
            frame(Kind::Commit, to.token),
            frame(Kind::Goodbye, to.token),
        ];
        let mut clients = Vec::new();
        for opening in &openings {
            let mut client = TcpStream::connect(to.address).expect("the port is open");
            client.write_all(opening).expect("it takes some bytes");
            clients.push(client);
            accept_nobody(&mut listener, 3)?;
        }
        // Clients that sent something wrong get an error or are cut off; those that sent nothing
        // or half are still waited for.
        let is_wrong = |i: usize| ![2, 3, 4].contains(&i);
        let mut answers = vec![(false, Vec::new()); clients.len()];
        for client in &clients {
            client.set_nonblocking(true).expect("a socket can be made non-blocking");
        }
        wait_until("the end of those that sent something wrong", || {
            accept_nobody(&mut listener, 1).expect("it listens");
            for (client, (closed, bytes)) in clients.iter_mut().zip(&mut answers) {
                // Reset counts as closed: that is what those get who had said more than was read.
                *closed |=
                    !client.read_to_end(bytes).is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
            }
            answers.iter().enumerate().all(|(i, (closed, _))| *closed || !is_wrong(i))
        });
        let refusal = |bytes: &[u8]| {
            let mut assembler = Assembler::default();
            assembler.handle_bytes(bytes);
            let frame = assembler.poll_frame().ok().flatten().filter(|f| f.kind == Kind::Refuse);
            frame.map(|f| f.body_text())
        };
        let answers: Vec<_> =
            answers.iter().map(|(closed, bytes)| (*closed, refusal(bytes))).collect();
        for (i, (closed, _)) in answers.iter().enumerate() {
            assert_eq!(*closed, is_wrong(i), "client {i}: {answers:?}");
        }
        let other = format!("protocol 77, this Ferrite {PROTOCOL_VERSION}");
        assert!(answers[5].1.as_ref().is_some_and(|t| t.contains(&other)), "{answers:?}");
        assert!(answers[7].1.as_ref().is_some_and(|t| t.contains("wrong token")), "{answers:?}");
        let pair = connect(worker, &transport, &handle, &mut listener)?;
        works(worker, pair)
    })
}

#[test]
fn two_hundred_silent_clients_keep_no_peer_out() -> Result<()> {
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let mut flood = Vec::new();
        for _ in 0..200 {
            flood.push(TcpStream::connect(address(&handle).address).expect("the port is open"));
            accept_nobody(&mut listener, 1)?;
        }
        let pair = connect(worker, &transport, &handle, &mut listener)?;
        works(worker, pair)
    })
}

#[test]
fn a_peer_that_dies_at_any_step_of_accept_leaves_the_listener_usable() -> Result<()> {
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let to = address(&handle);
        let whole = hello(worker, &transport, &to)?;
        for cut in [0, 1, 31, 32, 40, whole.len() - 1, whole.len()] {
            let mut peer = TcpStream::connect(to.address).expect("the port is open");
            peer.write_all(&whole[..cut]).expect("sent");
            accept_nobody(&mut listener, 5)?;
            if cut == whole.len() {
                let mut head = [0; 32];
                peer.read_exact(&mut head).expect("the listener replies to a hello");
            }
            drop(peer);
            accept_nobody(&mut listener, 5)?;
        }
        let pair = connect(worker, &transport, &handle, &mut listener)?;
        works(worker, pair)
    })
}

/// Every client is heard before another has to go, so a peer in the middle of a flood gets through.
#[test]
fn a_peer_among_two_hundred_silent_clients_is_accepted() -> Result<()> {
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let to = address(&handle).address;
        let flood = || {
            (0..100).map(|_| TcpStream::connect(to).expect("the port is open")).collect::<Vec<_>>()
        };
        let _before = flood();
        let mut mine = Handle(handle.0);
        // Dials and says hello, in between.
        for _ in 0..3 {
            assert!(transport.connect(1, &mut mine)?.is_none());
            std::thread::sleep(Duration::from_millis(2));
        }
        let _after = flood();
        let pair = connect_pair(worker, &transport, 1, &mut mine, &mut listener, || ())?;
        works(worker, pair)
    })
}
