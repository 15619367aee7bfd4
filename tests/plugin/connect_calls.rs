//! What `connect` keeps from one of NCCL's calls to the next.

use crate::common::handshake::hello_on;
use crate::common::prelude::*;
use nccl_net::testing::proto::frame::{Frame, Kind};
use nccl_net::testing::proto::handle;
use nccl_net::testing::proto::handle::Handle as Address;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use testkit::port::SilentPort;

/// A handle that leads to `port`.
fn leads_to(port: &SilentPort) -> Handle {
    Handle(Address::without_gids(port.address(), [5; 16]).emit())
}

#[test]
fn queue_pairs_are_made_while_the_control_connection_is_dialled() -> Result<()> {
    alone(setting(), |_| {
        let (transport, port) = (plugin_transport()?, SilentPort::new());
        assert!(transport.connect(0, &mut leads_to(&port))?.is_none());
        assert_eq!(own_queues("queue_pairs").len(), 1);
        Ok(())
    })
}

#[test]
fn a_port_that_cannot_be_reached_is_a_warning_long_before_the_connection_fails() -> Result<()> {
    alone(talkative(&[("FERRITE_HANG_SECONDS", "1")]), |_| {
        let (transport, port) = (plugin_transport()?, SilentPort::new());
        let mut handle = leads_to(&port);
        wait_until("a line", || {
            assert!(transport.connect(0, &mut handle).expect("it is tried").is_none());
            said(&[
                "WARN",
                &format!("has been connecting to {}", port.address()),
                "there is no TCP connection",
            ])
        });
        Ok(())
    })
}

/// NCCL calls nothing more, for this connection or for others. The test before shows that there is
/// something to give up.
#[test]
fn what_was_made_for_a_connection_that_nobody_asks_for_is_given_up() -> Result<()> {
    alone(setting_with(&[("FERRITE_HANDSHAKE_TIMEOUT", "2")]), |_| {
        let (transport, port) = (plugin_transport()?, SilentPort::new());
        assert!(transport.connect(0, &mut leads_to(&port))?.is_none());
        wait_until("it is given up", || own_queues("queue_pairs").is_empty());
        Ok(())
    })
}

/// The handle of one listener has the number of a connection that is being made to another one.
#[test]
fn a_connection_leads_to_the_listener_of_its_handle_whatever_number_that_has() -> Result<()> {
    alone(setting(), |worker| {
        let (transport, port) = (plugin_transport()?, SilentPort::new());
        let mut other = leads_to(&port);
        assert!(transport.connect(0, &mut other)?.is_none());
        let (mut handle, mut listener) = transport.listen(0)?;
        handle::set_cookie(&mut handle.0, handle::cookie(&other.0));
        let pair = connect_pair(worker, &transport, 0, &mut handle, &mut listener, || ())?;
        works(worker, pair)
    })
}

/// It had been there for longer than the limit of an attempt, and the next one has all of that
/// again.
#[test]
fn a_control_connection_that_ends_before_the_listener_answers_is_dialled_again() -> Result<()> {
    alone(setting_with(&[("FERRITE_HANDSHAKE_TIMEOUT", "5")]), |worker| {
        let socket = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let address = socket.local_addr().expect("an address");
        // Nobody waits for its end: where no second client comes, the test fails.
        std::thread::spawn(move || {
            let (mut client, _) = socket.accept().expect("a client");
            hello_on(&mut client);
            std::thread::sleep(Duration::from_secs(6));
            drop(client);
            let (mut client, _) = socket.accept().expect("a client");
            let refusal = Frame::text(Kind::Refuse, hello_on(&mut client).secret, "it is enough");
            client.write_all(&refusal.emit()).expect("sent");
            loop {
                std::thread::park();
            }
        });
        let transport = plugin_transport()?;
        let mut handle = Handle(Address::without_gids(address, [5; 16]).emit());
        let mut deadline = worker.deadline("a refusal");
        while let Ok(none) = transport.connect(0, &mut handle) {
            assert!(none.is_none(), "it is no listener");
            deadline.idle()?;
        }
        assert_logged("the listener refuses: it is enough");
        Ok(())
    })
}
