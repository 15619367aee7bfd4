//! The connections of a port, by the secrets that their peers know: what a peer says who has lost a line.

use super::link::Link;
use crate::proto::handle::{Secret, Token};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The list. Connections that are no more are struck off now and then.
#[derive(Debug, Default)]
pub struct Connections {
    by_secret: HashMap<Secret, (Token, Weak<Link>)>,
    sweep_at: usize,
}

const FEW: usize = 32;

impl Connections {
    /// One more, which the listener that knows `token` has made. A secret that is there already is of the same peer, which
    /// had no need to say it twice: the later connection has it.
    pub fn add(&mut self, secret: Secret, token: Token, link: &Arc<Link>) {
        if self.by_secret.len() >= self.sweep_at {
            self.by_secret.retain(|_, (_, link)| link.strong_count() > 0);
            self.sweep_at = FEW.max(2 * self.by_secret.len());
        }
        self.by_secret.insert(secret, (token, Arc::downgrade(link)));
    }

    /// The one with this secret, if the listener's token is right too.
    pub fn get(&self, secret: &Secret, token: &Token) -> Option<Arc<Link>> {
        let (of, link) = self.by_secret.get(secret)?;
        // Not even for a moment, if it is the wrong one: it might be the last that has it.
        if of == token { link.upgrade() } else { None }
    }
}
