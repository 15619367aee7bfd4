//! Many connections over the port that falls.

use crate::common::plugin_transport;
use crate::fabric::{Fabric, end, inject_only, run};
use crate::stream::{Shape, Stream};
use ferrite::error::Result;
use ferrite::pair::PeerConn;
use std::time::Instant;

/// Of a process, each way.
const CONNECTIONS: usize = 64;

/// It prints how long that takes; nothing is asked of it.
#[test]
fn all_connections_of_a_process_go_on_after_their_port_has_fallen() -> Result<()> {
    run(Fabric::OneRail, &[], |worker| {
        let transport = plugin_transport()?;
        let device = worker.rank();
        let shape = Shape { depth: 2, bytes: 4096 };
        let mut streams = Vec::new();
        for _ in 0..CONNECTIONS {
            streams.push(Stream::over(PeerConn::open(worker, &transport, device)?, transport.clone(), shape)?);
        }
        streams.iter_mut().try_for_each(|stream| stream.exchange(worker, 4))?;
        for device in ["softrnic0", "softrnic1"] {
            worker.barrier()?;
            if worker.rank() == 0 {
                inject_only(&format!("port-down=5ms device={device} times=1"));
            }
            worker.barrier()?;
            worker.begin(format!("messages over all connections, the port of {device} falls"))?;
            let begin = Instant::now();
            Stream::exchange_over_all(&mut streams, worker, 10)?;
            let (count, ms) = (2 * CONNECTIONS, begin.elapsed().as_millis());
            eprintln!("{count} connections: ten messages over each, a fall of {device} included, took {ms} ms");
        }
        let first = streams.pop().expect("a stream");
        streams.into_iter().try_for_each(Stream::close)?;
        end(worker, first)
    })
}
