//! What connections cost: time one after the other, memory all at once.

use std::time::Instant;

use crate::error::Result;
use crate::solo::endpoints::Endpoints;
use crate::system::host;
use crate::transport::local_conn::LocalConn;

/// Makes `count` connections, each closed before the next.
pub(super) fn each(endpoints: &Endpoints, count: u32) -> Result<String> {
    let start = Instant::now();
    for _ in 0..count {
        endpoints.connect()?.close()?;
    }
    let us = start.elapsed().as_secs_f64() * 1e6 / f64::from(count);
    Ok(format!("{count} connections made and closed, {us:.1} us each"))
}

/// Makes `count` connections and holds them. One that is made before and closed pays for what a
/// process needs once.
pub(super) fn all(endpoints: &Endpoints, count: u32) -> Result<String> {
    endpoints.connect()?.close()?;
    let mut conns = Vec::with_capacity(count as usize);
    let before = host::resident()?;
    let start = Instant::now();
    for _ in 0..count {
        conns.push(endpoints.connect()?);
    }
    let us = start.elapsed().as_secs_f64() * 1e6 / f64::from(count);
    let after = host::resident()?;
    conns.into_iter().try_for_each(LocalConn::close)?;
    let per_comm = |before: u64, after: u64| after.saturating_sub(before) / (2 * u64::from(count));
    Ok(format!(
        "{count} connections held, {us:.1} us each, {} B resident per comm, of which {} B shared memory",
        per_comm(before.all, after.all),
        per_comm(before.shared, after.shared)
    ))
}
