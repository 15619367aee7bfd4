//! The rules that concern one connection, as its sender keeps them: whether one applies to a message is then found without a
//! lock, and at once where there is none.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::network::port_id::PortId;
use crate::rules::action::Action;
use crate::rules::table;
use crate::shm::file::SharedFile;
use crate::shm::slots::RuleSlot;

/// A connection: its ports, and its number among those between them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) from: PortId,
    pub(crate) to: PortId,
    pub(crate) flow: u32,
    /// Which of the sender's paths it takes, where paths are modelled.
    pub(crate) path: Option<u32>,
}

/// A rule in its slot, its identity and its action.
pub(crate) type KnownRule = (&'static RuleSlot, u32, Action);

/// The rules of a connection, in the order in which they were put into force. Kept by its send queue.
#[derive(Debug, Default)]
pub(crate) struct KnownRules {
    /// State of the table that they were found in; 0: not looked for yet.
    epoch: u32,
    rules: Vec<KnownRule>,
}

impl KnownRules {
    /// Whether it is known that no rule concerns the connection, in state `epoch` of the table.
    #[inline]
    pub(crate) fn is_free(&self, epoch: u32) -> bool {
        self.epoch == epoch && self.rules.is_empty()
    }

    /// Looks for them if the table is in another state now.
    pub(crate) fn refresh(&mut self, file: &SharedFile, epoch: u32, connection: Connection) {
        if self.epoch != epoch {
            *self = Self { epoch, rules: find(file, connection) };
        }
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &KnownRule> {
        self.rules.iter()
    }
}

#[cold]
fn find(file: &SharedFile, Connection { from, to, flow, path }: Connection) -> Vec<KnownRule> {
    let concerns = |rule: &&RuleSlot| {
        let is = |field: u32, value: u32| field == 0 || field == value;
        is(rule.device.load(Relaxed), from.device as u32 + 1)
            && is(rule.port.load(Relaxed), from.port)
            && is(rule.peer.load(Relaxed), to.device as u32 + 1)
            && is(rule.peer_port.load(Relaxed), to.port)
            && is(rule.flow.load(Relaxed), flow + 1)
            && is(rule.path.load(Relaxed), path.map_or(u32::MAX, |path| path + 1))
    };
    let rules = file.rules().iter().filter(|rule| rule.id.load(Acquire) != 0).filter(concerns);
    let rules = rules.filter_map(|rule| Some((rule, rule.id.load(Acquire), table::action_of(rule)?)));
    let mut rules: Vec<_> = rules.filter(|(_, _, action)| !action.is_for_calls()).collect();
    rules.sort_unstable_by_key(|(_, id, _)| *id);
    rules
}
