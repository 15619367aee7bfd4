//! The tables of ncclNet v8 to v12 beside what `ferrite check` tries with each of them: which one
//! NCCL has taken, and devices that NCCL has merged.

use crate::common::prelude::*;
use lab::transport::listener::connect_and_accept;

fn plugin(version: u32) -> Source {
    Source::plugin_of(dist().join("lib/libnccl-net.so"), version)
}

fn table(version: u32) -> Result<Transport> {
    Transport::open(&plugin(version))
}

#[test]
fn the_log_names_each_table_that_nccl_takes_once() -> Result<()> {
    alone(talkative(&[]), |_| {
        for version in 8..=12 {
            let _transports = [table(version)?, table(version)?];
            let line = format!("NCCL took ncclNetPlugin_v{version}");
            let times = log().lines().filter(|logged| logged.ends_with(&line)).count();
            assert_eq!(times, 1, "{line}: {}", log());
        }
        Ok(())
    })
}

/// With a communicator of traffic class 42, packets of data and of clear-to-sends have these
/// classes, and no others.
fn classes_are(version: u32, classes: [&str; 2]) -> Result<()> {
    alone(talkative(&[]), |_| {
        let transport = Transport::open_with_class(&plugin(version), 42)?;
        let _ends = connect_within(&transport)?;
        for class in classes {
            assert!(said(&["traffic class", class]), "no {class} in {}", log());
        }
        let is_other = |line: &&str| {
            line.contains("traffic class") && !classes.iter().any(|class| line.contains(class))
        };
        assert_eq!(log().lines().find(is_other), None);
        Ok(())
    })
}

cases! { Result<()>;
    version_8_knows_no_traffic_class => classes_are(8, ["class 0,"; 2]);
    version_10_tells_the_sender_alone_the_traffic_class =>
        classes_are(10, ["class 0,", "class 42,"]);
    version_11_tells_both_ends_the_traffic_class => classes_are(11, ["class 42,"; 2]);
    version_12_tells_both_ends_the_traffic_class => classes_are(12, ["class 42,"; 2]);
}

#[test]
fn a_traffic_class_that_there_is_not_is_named() -> Result<()> {
    alone(talkative(&[]), |_| {
        let _transport = Transport::open_with_class(&plugin(12), 256)?;
        assert!(said(&["WARN", "traffic class is 256, not 0 to 255"]), "{}", log());
        Ok(())
    })
}

/// What the log says of NCCLs that have taken this table and are given an error: that of a send
/// whose peer has closed.
fn said_of_nccl(version: u32) -> Result<Vec<String>> {
    let (send, recv) = connect_within(&table(version)?)?;
    let memory = Arc::new(Buffer::new(64)?);
    let region = send.register(&memory)?;
    recv.close()?;
    wait_until("the peer's end", || send.send(&region, 0, 64, 0).is_err());
    assert!(said(&["WARN", "isend: "]), "{}", log());
    Ok(log().lines().filter(|line| line.contains("(ncclNetPlugin_v")).map(str::to_owned).collect())
}

/// The log says `words` once, however many errors there are.
fn said_once(version: u32, words: &str) -> Result<()> {
    alone(talkative(&[]), |_| {
        for _ in 0..2 {
            let lines = said_of_nccl(version)?;
            assert!(lines.len() == 1 && lines[0].contains(words), "{lines:?}: {}", log());
        }
        Ok(())
    })
}

cases! { Result<()>;
    nccl_of_version_9_does_not_end_an_abort_which_is_said_once =>
        said_once(9, "ncclCommAbort does not return");
    nccl_of_version_10_drops_errors_which_is_said_once => said_once(10, "do not report this error");
}

#[test]
fn nccl_of_other_versions_passes_errors_on() -> Result<()> {
    alone(talkative(&[]), |_| {
        for version in [8, 11, 12] {
            assert_eq!(said_of_nccl(version)?, Vec::<String>::new(), "{}", log());
        }
        Ok(())
    })
}

/// A connection from device 0 to itself.
fn connect_within(transport: &Transport) -> Result<(SendComm, RecvComm)> {
    let (mut handle, mut listener) = transport.listen(0)?;
    let mut deadline = Deadline::new("a connection", testkit::wait::LIMIT);
    connect_and_accept(transport, 0, &mut handle, &mut listener, &mut deadline, || ())
}

/// `makeVDevice` of these devices is refused, with `words` in the log.
#[track_caller]
fn refused(transport: &Transport, members: &[usize], words: &str) {
    let code = match transport.fuse(members) {
        Err(Error::Call { code, .. }) => code,
        other => panic!("{members:?}: {other:?}"),
    };
    assert_eq!(code, abi::ncclInvalidUsage);
    assert!(said(&["makeVDevice: ", words]), "{words:?} is not in {}", log());
}

#[test]
fn ports_of_several_cards_are_not_merged() -> Result<()> {
    alone(talkative(&[("NCCL_IB_MERGE_NICS", "1")]), |_| {
        refused(
            &table(11)?,
            &[0, 1],
            "softrnic0 and softrnic1 cannot be one device: they are not equal ports of one card",
        );
        Ok(())
    })
}

#[test]
fn ports_of_several_cards_are_merged_if_the_user_says_so() -> Result<()> {
    let merging =
        [("NCCL_IB_MERGE_NICS", "1"), ("NCCL_NET_MERGE_LEVEL", "SYS"), ("SOFTRNIC_DEVICES", "5")];
    alone(talkative(&merging), |_| {
        let transport = table(12)?;
        let pair = transport.fuse(&[1, 0])?;
        assert_eq!(transport.properties(pair)?.name, "softrnic1+softrnic0");
        assert_eq!(transport.fuse(&[1, 0])?, pair, "the same device again");
        refused(&transport, &[0, 1, 2, 3, 4], "4 ports are allowed");
        refused(&transport, &[2, 2], "a port is named twice");
        refused(&transport, &[2, pair], "is merged already");
        Ok(())
    })
}

#[test]
fn nothing_is_merged_with_nccl_ib_merge_nics_0() -> Result<()> {
    alone(talkative(&[("NCCL_IB_MERGE_NICS", "0"), ("NCCL_NET_MERGE_LEVEL", "SYS")]), |_| {
        refused(&table(11)?, &[0, 1], "NCCL_IB_MERGE_NICS=0");
        Ok(())
    })
}

/// NCCL 2.24 to 2.26 cannot continue after a refusal: there is a new device for each port.
#[test]
fn ports_that_cannot_be_one_device_are_several_to_nccl_of_versions_9_and_10() -> Result<()> {
    alone(talkative(&[("NCCL_IB_MERGE_NICS", "0"), ("NCCL_NET_MERGE_LEVEL", "SYS")]), |_| {
        for version in [9, 10] {
            let transport = table(version)?;
            assert_eq!(transport.devices()?, 2);
            for _ in 0..2 {
                assert_eq!((transport.fuse(&[0, 1])?, transport.devices()?), (2, 4));
            }
            for (number, port) in [(2, 0), (3, 1)] {
                let device = transport.properties(number)?;
                assert_eq!((device.name, device.fused), (format!("softrnic{port}"), vec![port]));
                assert_eq!(transport.fuse(&[port as usize])?, number, "the same device again");
            }
            assert!(transport.fuse(&[0, 99]).is_err());
            // A second NCCL of the process takes all four for ports.
            assert_eq!(
                (transport.fuse(&[0, 2])?, transport.fuse(&[3, 1])?, transport.devices()?),
                (2, 3, 4)
            );
        }
        Ok(())
    })
}

#[test]
fn a_port_for_which_there_is_no_room_as_a_new_device_is_that_port() -> Result<()> {
    let merging =
        [("NCCL_IB_MERGE_NICS", "1"), ("NCCL_NET_FORCE_MERGE", "any"), ("SOFTRNIC_DEVICES", "6")];
    alone(talkative(&merging), |_| {
        let transport = table(10)?;
        let ports = || 0..6_usize;
        let triples =
            ports().flat_map(|a| ports().flat_map(move |b| ports().map(move |c| [a, b, c])));
        let triples = triples.filter(|[a, b, c]| a != b && b != c && a != c);
        for (number, members) in (6..).zip(triples.take(64)) {
            assert_eq!(transport.fuse(&members)?, number);
        }
        assert_eq!(
            (transport.fuse(&[5])?, transport.fuse(&[4, 3])?, transport.devices()?),
            (5, 4, 70)
        );
        Ok(())
    })
}

/// NCCL 2.24 to 2.26 use only new devices as soon as there is one: also for a port that is alone on
/// its card.
#[test]
fn a_port_that_is_not_merged_is_a_new_device_to_nccl_of_versions_9_and_10() -> Result<()> {
    let merging =
        [("NCCL_IB_MERGE_NICS", "1"), ("NCCL_NET_FORCE_MERGE", "any"), ("SOFTRNIC_DEVICES", "3")];
    alone(talkative(&merging), |_| {
        for version in [9, 10] {
            let transport = table(version)?;
            assert_eq!(
                (transport.fuse(&[0, 1])?, transport.fuse(&[2])?, transport.devices()?),
                (3, 4, 5)
            );
            assert_eq!(transport.properties(4)?.name, "softrnic2");
        }
        assert_eq!((table(11)?.fuse(&[2])?, table(11)?.devices()?), (2, 3));
        Ok(())
    })
}

/// NCCL forgets what it has merged when it unloads the plugin, with its last communicator; the
/// plugin stays in memory.
#[test]
fn merged_devices_are_forgotten_when_nccl_loads_the_plugin_again() -> Result<()> {
    alone(talkative(&[("NCCL_IB_MERGE_NICS", "1"), ("NCCL_NET_FORCE_MERGE", "any")]), |_| {
        let first = table(11)?;
        assert_eq!((first.devices()?, first.fuse(&[0, 1])?, first.devices()?), (2, 2, 3));
        let second = table(11)?;
        drop(first);
        assert_eq!(
            second.devices()?,
            2,
            "as NCCL 2.28.3 asks for each communicator: it takes all of them for ports"
        );
        assert_eq!(second.properties(2)?.name, "softrnic0+softrnic1", "a communicator is left");
        assert_eq!((second.devices()?, second.fuse(&[0, 1])?, second.devices()?), (3, 2, 3));
        drop(second);
        let third = table(11)?;
        assert_eq!(third.devices()?, 2, "NCCL takes all of them for ports");
        assert_eq!((third.fuse(&[0, 1])?, third.devices()?), (2, 3));
        drop(third);
        // NCCL has not unloaded the plugin: it uses a device before it asks for their number.
        let fourth = table(11)?;
        assert_eq!(fourth.properties(2)?.name, "softrnic0+softrnic1");
        assert_eq!(fourth.devices()?, 3);
        // NCCL up to 2.27 remembers them for as long as its process lives. Another table has
        // devices of its own.
        let older = table(9)?;
        assert_eq!((older.devices()?, older.fuse(&[0, 1])?), (2, 2));
        drop(older);
        assert_eq!(table(9)?.devices()?, 3);
        Ok(())
    })
}
