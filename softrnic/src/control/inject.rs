//! Fault rules, put into force while programs run.

use std::sync::atomic::Ordering::SeqCst;

use crate::control::error::Error;
use crate::control::network::Network;
use crate::rules::{table, text};

/// A rule in force.
#[derive(Clone, Debug)]
pub struct InForce {
    /// By which it can be removed.
    pub number: u32,
    /// As text, which [`Network::inject`] understands.
    pub rule: String,
    /// How often it has been applied. A rule for calls: how often it was asked.
    pub hits: u64,
}

impl Network {
    /// Puts rules into force, behind those that are; returns their numbers. `text`: `ACTION[=VALUE] [key=value …]`, rules
    /// separated by `;` or line ends.
    pub fn inject(&self, text: &str) -> Result<Vec<u32>, Error> {
        let rules = text::parse(text).map_err(|error| Error::Rule(error.to_string()))?;
        table::require(&self.fabric.topology, &rules).map_err(Error::Rule)?;
        let control = self.fabric.file.control();
        table::install(self.fabric, &control, &rules).map_err(Error::Rule)
    }

    /// The rules in force, in their order.
    pub fn rules(&self) -> Vec<InForce> {
        let rules = table::list(self.fabric).into_iter();
        rules.map(|(number, rule, hits)| InForce { number, rule: rule.to_string(), hits }).collect()
    }

    /// Removes rule `number`.
    pub fn remove_rule(&self, number: u32) -> Result<(), Error> {
        let control = self.fabric.file.control();
        if table::remove(self.fabric, &control, number) { Ok(()) } else { Err(Error::NoRule(number)) }
    }

    /// Removes all rules.
    pub fn clear_rules(&self) {
        let control = self.fabric.file.control();
        table::clear(self.fabric, &control);
    }

    /// Sets the seed of all random decisions from now on.
    pub fn set_seed(&self, seed: u64) {
        self.fabric.header().seed.store(seed, SeqCst);
    }
}
