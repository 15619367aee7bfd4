//! Many connections over the port that falls.

use crate::common::prelude::*;
use crate::fabric::{end, inject_only};
use crate::stream::{Shape, Stream};

/// Of a process, each way.
const CONNECTIONS: usize = 64;

/// So many connections.
fn open(worker: &mut WorkerCtx, count: usize) -> Result<Vec<Stream>> {
    let transport = plugin_transport()?;
    let device = worker.rank();
    let shape = Shape { depth: 2, bytes: 4096 };
    let stream =
        |_| Stream::over(PeerConn::open(worker, &transport, device)?, transport.clone(), shape);
    (0..count).map(stream).collect()
}

fn close(worker: &mut WorkerCtx, mut streams: Vec<Stream>) -> Result<()> {
    let first = streams.pop().expect("a stream");
    streams.into_iter().try_for_each(Stream::close)?;
    end(worker, first)
}

/// It prints how long that takes; nothing is asked of it.
#[test]
fn all_connections_of_a_process_resume_after_their_port_has_fallen() -> Result<()> {
    let setting = require!(talkative(&[]));
    let lines: [Vec<String>; 2] = pair(&setting, |worker| {
        let mut lines = Vec::new();
        let mut streams = open(worker, CONNECTIONS)?;
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
            lines.push(format!(
                "rank {}: ten messages over each of {count} connections took {ms} ms, a fall of {device} included",
                worker.rank()
            ));
        }
        close(worker, streams)?;
        Ok(lines)
    })?;
    println!("{}", lines.concat().join("\n"));
    Ok(())
}

/// The device says of each queue pair that it has failed.
#[test]
fn queue_pairs_that_fail_at_the_same_time_are_not_a_warning_each() -> Result<()> {
    const COUNT: usize = 16;
    let setting = require!(talkative(&[]));
    pair(&setting, |worker| {
        let mut streams = open(worker, COUNT)?;
        let begin = Instant::now();
        worker.barrier()?;
        if worker.rank() == 0 {
            inject_only(&format!("qp-error device=softrnic0 times={COUNT}"));
        }
        worker.barrier()?;
        Stream::exchange_over_all(&mut streams, worker, 10)?;
        close(worker, streams)?;
        // The device reports the failures beside the completions: of a queue pair that has been
        // destroyed by then it reports none. There is a second at least between two warnings.
        let of_queue_pairs =
            |line: &String| line.starts_with("WARN") && line.contains("queue pair fatal error");
        let warnings = lab::nccl::debug_log::lines().into_iter().filter(of_queue_pairs).count();
        let allowed = if worker.rank() == 0 { 1 + begin.elapsed().as_secs() } else { 0 };
        assert!(
            warnings as u64 <= allowed,
            "{warnings} in {:?}: {:#?}",
            begin.elapsed(),
            lab::nccl::debug_log::lines()
        );
        Ok(())
    })
    .map(drop)
}
