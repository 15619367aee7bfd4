//! The rules that concern one connection.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Mutex};

use crate::host::lock::lock;
use crate::network::port_id::PortId;
use crate::process::fabric::Fabric;
use crate::rules::action::Action;
use crate::rules::table;
use crate::shm::slots::RuleSlot;

/// A connection: its ports, and its number among those between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Connection {
    pub(crate) from: PortId,
    pub(crate) to: PortId,
    pub(crate) flow: u32,
}

/// Rules, each with its identity and its action, in the order in which they were put into force.
pub(crate) type ActiveRules = Arc<[(&'static RuleSlot, u32, Action)]>;

/// The rules of each connection, as of one state of the table.
#[derive(Debug, Default)]
pub(crate) struct RulesByConnection {
    known: Mutex<(u32, HashMap<Connection, ActiveRules>)>,
}

impl RulesByConnection {
    /// The rules that concern `connection`, in state `epoch` of the table.
    pub(crate) fn of(&self, fabric: &'static Fabric, epoch: u32, connection: Connection) -> ActiveRules {
        let mut known = lock(&self.known);
        if known.0 != epoch {
            *known = (epoch, HashMap::new());
        }
        Arc::clone(known.1.entry(connection).or_insert_with(|| find(fabric, connection)))
    }
}

fn find(fabric: &'static Fabric, Connection { from, to, flow }: Connection) -> ActiveRules {
    let concerns = |rule: &&RuleSlot| {
        let is = |field: u32, value: u32| field == 0 || field == value;
        is(rule.device.load(Relaxed), from.device as u32 + 1)
            && is(rule.port.load(Relaxed), from.port)
            && is(rule.peer.load(Relaxed), to.device as u32 + 1)
            && is(rule.peer_port.load(Relaxed), to.port)
            && is(rule.flow.load(Relaxed), flow + 1)
    };
    let rules = fabric.rules().iter().filter(|rule| rule.id.load(Acquire) != 0).filter(concerns);
    let rules = rules.filter_map(|rule| Some((rule, rule.id.load(Acquire), table::action_of(rule)?)));
    let mut rules: Vec<_> = rules.filter(|(_, _, action)| !action.is_for_calls()).collect();
    rules.sort_unstable_by_key(|(_, id, _)| *id);
    rules.into()
}
