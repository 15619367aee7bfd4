//! What the two ends of a connection tell each other about its recovery.

use super::account::Account;
use super::rail_mask::RailMask;
use crate::proto::codec::{Reader, Writer};
use crate::proto::endpoint::Endpoint;
use crate::proto::frame::Kind;
use crate::proto::{Violation, violation};

/// The body of a control message about recovery. `usable` are the rails whose port at this end is active and has its address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    /// Either way: this end has begun attempt `attempt`, and uses its queue pairs no more. It is said again when `usable` changes.
    Halt {
        /// The attempt, from 1 on.
        attempt: u32,
        /// The rails that this end can use.
        usable: RailMask,
        /// Why, for people.
        cause: String,
    },
    /// Either way, while the connection runs: what this end can use has changed.
    Ports {
        /// The rails that this end can use.
        usable: RailMask,
    },
    /// Sender to receiver: its new queue pairs.
    Offer {
        /// The attempt.
        attempt: u32,
        /// The rails that they are on, at least one.
        rails: RailMask,
        /// The sender's end; its rails are those of `rails` in ascending order.
        endpoint: Endpoint,
    },
    /// Receiver to sender: its new queue pairs, which are connected to the sender's.
    Answer {
        /// The attempt.
        attempt: u32,
        /// The rails of the offer.
        rails: RailMask,
        /// The receiver's end; its rails are those of `rails` in ascending order.
        endpoint: Endpoint,
    },
    /// Sender to receiver: the sender's queue pairs are connected too.
    Ready {
        /// The attempt.
        attempt: u32,
    },
    /// Receiver to sender: what has not arrived.
    Account {
        /// The attempt.
        attempt: u32,
        /// What has not arrived.
        account: Account,
    },
}

impl Message {
    /// The kind of its frame.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Halt { .. } => Kind::Halt,
            Self::Ports { .. } => Kind::Ports,
            Self::Offer { .. } => Kind::Offer,
            Self::Answer { .. } => Kind::Answer,
            Self::Ready { .. } => Kind::Ready,
            Self::Account { .. } => Kind::Account,
        }
    }

    /// The body of its frame.
    pub fn body(&self) -> Vec<u8> {
        let mut body = Writer::default();
        if let Some(attempt) = self.attempt() {
            body.u32(attempt);
        }
        match self {
            Self::Halt { usable, cause, .. } => {
                body.u8(usable.0);
                body.name(cause);
            }
            Self::Ports { usable } => body.u8(usable.0),
            Self::Offer { rails, endpoint, .. } | Self::Answer { rails, endpoint, .. } => {
                body.u8(rails.0);
                endpoint.emit(&mut body);
            }
            Self::Ready { .. } => {}
            Self::Account { account, .. } => account.emit(&mut body),
        }
        body.0
    }

    /// The attempt that it is about.
    pub fn attempt(&self) -> Option<u32> {
        match self {
            Self::Ports { .. } => None,
            Self::Halt { attempt, .. }
            | Self::Offer { attempt, .. }
            | Self::Answer { attempt, .. }
            | Self::Ready { attempt }
            | Self::Account { attempt, .. } => Some(*attempt),
        }
    }

    /// Reads a frame's body. `rails` is the number of rails that the connection was set up with.
    ///
    /// # Errors
    /// The frame is not about recovery, its body is too short or too long, or it says something no Ferrite says.
    pub fn parse(kind: Kind, body: &[u8], rails: u8) -> Result<Self, Violation> {
        let mut body = Reader(body);
        let all = RailMask::first(rails.min(8));
        let message = match kind {
            Kind::Halt => Self::Halt { attempt: body.u32()?, usable: rail_mask(&mut body, all)?, cause: body.name()? },
            Kind::Ports => Self::Ports { usable: rail_mask(&mut body, all)? },
            Kind::Offer => {
                let (attempt, (rails, endpoint)) = (body.u32()?, end(&mut body, all)?);
                Self::Offer { attempt, rails, endpoint }
            }
            Kind::Answer => {
                let (attempt, (rails, endpoint)) = (body.u32()?, end(&mut body, all)?);
                Self::Answer { attempt, rails, endpoint }
            }
            Kind::Ready => Self::Ready { attempt: body.u32()? },
            Kind::Account => Self::Account { attempt: body.u32()?, account: Account::parse(&mut body)? },
            Kind::Hello | Kind::Reply | Kind::Commit | Kind::Refuse | Kind::Goodbye | Kind::Resume => {
                return Err(violation!("{kind:?} is no message about recovery"));
            }
        };
        body.end()?;
        Ok(message)
    }
}

fn rail_mask(body: &mut Reader<'_>, all: RailMask) -> Result<RailMask, Violation> {
    let mask = RailMask(body.u8()?);
    if mask.is_within(all) { Ok(mask) } else { Err(violation!("rails {mask} of a connection that has rails {all}")) }
}

/// Rails and the end that has queue pairs on them.
fn end(body: &mut Reader<'_>, all: RailMask) -> Result<(RailMask, Endpoint), Violation> {
    let (rails, endpoint) = (rail_mask(body, all)?, Endpoint::parse(body)?);
    if endpoint.rails.len() != usize::from(rails.count()) {
        let count = endpoint.rails.len();
        return Err(violation!(
            "{} has queue pairs on {count} rails, and says that these are rails {rails}",
            endpoint.name
        ));
    }
    Ok((rails, endpoint))
}
