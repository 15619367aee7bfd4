//! What is known of one driver.

use crate::abi::types::QpCap;
use crate::host::env;

/// What a driver's devices are like.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) name: &'static str,
    /// Variables and their values, which hold where the environment says nothing else.
    pub(crate) settings: &'static [(&'static str, &'static str)],
    /// The same where the environment says that all ports are InfiniBand. These are stronger than `settings`.
    pub(crate) infiniband_settings: &'static [(&'static str, &'static str)],
    pub(crate) fw_ver: &'static str,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    /// Most scatter/gather elements of a work request, of a send queue and of a receive queue.
    pub(crate) max_sge: (u32, u32),
    /// Most outstanding READs of a queue pair, on either side.
    pub(crate) max_reads: u8,
    /// Most bytes of a memory region.
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    /// Attributes that limit nothing here.
    pub(crate) max_pd: i32,
    pub(crate) max_ah: i32,
    pub(crate) local_ca_ack_delay: u8,
    /// The fewest work requests that each queue of a queue pair may be asked to have.
    pub(crate) min_queue: MinQueue,
    /// Types of queue pairs, as `ibv_qp_type`, and the errno value for others.
    pub(crate) qp_types: &'static [i32],
    pub(crate) other_type: i32,
    /// The errno value of a queue pair that is asked to have too much; 0: it stays as it was.
    pub(crate) too_much: i32,
    /// Whether inline data is taken when a work request is posted. Else the flag changes nothing, though the queue pair is granted what it
    /// is asked to have.
    pub(crate) takes_inline: bool,
    pub(crate) has_atomics: bool,
    /// Verbs that the driver does not have: `EOPNOTSUPP`.
    pub(crate) absent: &'static [Verb],
    /// What is made of capacities that are granted: many drivers round up, and write back what there is.
    pub(crate) round: fn(QpCap) -> QpCap,
    /// The same for the entries of a completion queue.
    pub(crate) round_cq: fn(u32) -> u32,
}

/// The fewest work requests of a send queue and of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MinQueue {
    pub(crate) send: u32,
    pub(crate) recv: u32,
}

/// What not every driver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    CreateAh,
    CreateCqEx,
    CreateQpEx,
    CreateSrq,
    QueryQp,
    ReregMr,
    ResizeCq,
}

impl Driver {
    /// `EOPNOTSUPP` if it does not have `verb`.
    pub(crate) fn require(&self, verb: Verb) -> Result<(), i32> {
        if self.absent.contains(&verb) { Err(libc::EOPNOTSUPP) } else { Ok(()) }
    }

    /// The value of a variable of the environment, or else the driver's. An empty value counts as absent.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>, String> {
        match env::text(name)? {
            None => self.own_text(name),
            said => Ok(said),
        }
    }

    /// The value that the driver has for a variable.
    fn own_text(&self, name: &str) -> Result<Option<String>, String> {
        let is_infiniband = env::text("SOFTRNIC_LINK")?.as_deref() == Some("ib");
        let stronger = if is_infiniband { self.infiniband_settings } else { &[] };
        let found = stronger.iter().chain(self.settings).find(|(variable, _)| *variable == name);
        Ok(found.map(|(_, value)| (*value).to_owned()))
    }
}
