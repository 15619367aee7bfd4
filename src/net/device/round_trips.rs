//! Round trips to peers, as measured by recoveries: a connection to a distant peer need not measure
//! again.

use crate::proto::endpoint::Endpoint;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most peers that are kept.
const MAX_PEERS: usize = 4096;

/// The round trips from one device, by the GID of the far port.
#[derive(Debug, Default)]
pub struct RoundTrips(Mutex<HashMap<[u8; 16], Duration>>);

impl RoundTrips {
    /// The ports of `remote` have acknowledged after this time.
    pub fn learn(&self, remote: &Endpoint, round_trip: Duration) {
        let mut known = self.lock();
        for rail in &remote.rails {
            if known.len() < MAX_PEERS || known.contains_key(&rail.gid) {
                known.insert(rail.gid, round_trip);
            }
        }
    }

    /// The longest round trip to a port of `remote`; zero if unknown.
    pub fn to(&self, remote: &Endpoint) -> Duration {
        let known = self.lock();
        remote
            .rails
            .iter()
            .filter_map(|rail| known.get(&rail.gid))
            .copied()
            .max()
            .unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 16], Duration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
