//! How long setting connections up has taken, as the log tells; and what it asks of the card.

use crate::common::prelude::*;
use crate::common::stat::port_queries;

/// How many connections the lines on those for `what` count; each names all of `steps`.
fn counted(what: &str, steps: &[&str]) -> usize {
    let lines = lab::nccl::debug_log::lines();
    let count = |line: &String| {
        let (count, told) =
            line.strip_prefix("INFO Ferrite: set up ")?.split_once(" connection(s) for ")?;
        let told = told.strip_prefix(what)?;
        assert!(steps.iter().all(|step| told.contains(&format!(" {step} "))), "{line}");
        count.parse::<usize>().ok()
    };
    lines.iter().filter_map(count).sum()
}

/// By lines of the subsystem INIT: `NCCL_DEBUG_SUBSYS` is not set.
#[test]
fn the_set_up_of_connections_is_summed_up_in_lines_that_nccl_shows_by_default() -> Result<()> {
    const CONNECTIONS: usize = 3;
    both(setting().map(|setting| setting.env("NCCL_DEBUG", "INFO")), |worker| {
        let transport = plugin_transport()?;
        let links: Vec<_> = (0..CONNECTIONS)
            .map(|_| PeerConn::open(worker, &transport, 0))
            .collect::<Result<_>>()?;
        let sending = ["dial", "creating queue pairs", "handshake", "connecting queue pairs"];
        let receiving =
            ["hello", "creating queue pairs", "connecting queue pairs", "receives", "commit"];
        let mut deadline = worker.deadline("the lines");
        // One in each direction, unless the machine is so busy that it took pauses between them.
        while counted("sending", &sending) < CONNECTIONS
            || counted("receiving", &receiving) < CONNECTIONS
        {
            deadline.idle()?;
        }
        worker.barrier()?;
        links.into_iter().try_for_each(PeerConn::close)
    })
}

/// Each query is a command to the card, for which NCCL's thread waits.
#[test]
fn connections_ask_for_the_state_of_a_port_once_a_second_at_most() -> Result<()> {
    const CONNECTIONS: usize = 20;
    both(setting(), |worker| {
        let transport = plugin_transport()?;
        let mut links = vec![PeerConn::open(worker, &transport, 0)?];
        // The time first: a query may come while the number is asked for.
        let (start, before) = (Instant::now(), port_queries());
        for _ in 0..CONNECTIONS {
            links.push(PeerConn::open(worker, &transport, 0)?);
        }
        let (asked, seconds) = (port_queries() - before, start.elapsed().as_secs());
        assert!(
            asked <= 1 + seconds,
            "{asked} queries in {seconds} s for {CONNECTIONS} connections in each direction"
        );
        worker.barrier()?;
        links.into_iter().try_for_each(PeerConn::close)
    })
}
