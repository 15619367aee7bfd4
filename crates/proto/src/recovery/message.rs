//! Messages about recovery between the two ends of a connection.

use super::missing_list::MissingList;
use super::rail_mask::RailMask;
use super::reach::Reach;
use crate::codec::{Reader, Writer};
use crate::endpoint::Endpoint;
use crate::frame::Kind;
use crate::{Violation, violation};
use std::fmt;

/// The body of a control message about recovery. `usable` are the rails whose port at this end is
/// active and has its address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Message {
    /// Either way: this end has begun attempt `attempt`, and no longer uses its queue pairs. The
    /// sender's are destroyed. Repeated when `usable` changes.
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
    /// Sender to receiver: the sender's queue pairs are connected too, and reach the receiver.
    Ready {
        /// The attempt.
        attempt: u32,
        /// Parameters for the receiver's test of the way back.
        reach: Reach,
    },
    /// Either way, while the connection runs: this end wants to begin another attempt without a
    /// fault. Asks whether the other end receives control messages.
    Ask {
        /// The attempt in which the connection runs.
        attempt: u32,
        /// The number of the question.
        number: u32,
    },
    /// Either way: confirms a question.
    Heard {
        /// The attempt of the question.
        attempt: u32,
        /// The number of the question.
        number: u32,
    },
    /// Receiver to sender: the messages that have not arrived.
    MissingList {
        /// The attempt.
        attempt: u32,
        /// What has not arrived.
        missing_list: MissingList,
    },
}

/// For the log.
impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match self {
            Self::Halt { attempt, usable, cause } => {
                write!(f, "{kind:?} of attempt {attempt}, with rail(s) {usable} usable: {cause}")
            }
            Self::Ports { usable } => write!(f, "{kind:?}: rail(s) {usable} are usable"),
            Self::Offer { attempt, rails, endpoint }
            | Self::Answer { attempt, rails, endpoint } => {
                let count: usize = endpoint.rails.iter().map(|rail| rail.qps.len()).sum();
                write!(f, "{kind:?} of attempt {attempt}: {count} queue pair(s) on rail(s) {rails}")
            }
            Self::Ask { attempt, .. } | Self::Heard { attempt, .. } => {
                write!(f, "{kind:?} in attempt {attempt}")
            }
            Self::Ready { attempt, reach: _ } => write!(f, "{kind:?} of attempt {attempt}"),
            Self::MissingList { attempt, missing_list } => {
                write!(
                    f,
                    "{kind:?} of attempt {attempt}: {} message(s) have not arrived",
                    missing_list.missing.len()
                )
            }
        }
    }
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
            Self::Ask { .. } => Kind::Ask,
            Self::Heard { .. } => Kind::Heard,
            Self::MissingList { .. } => Kind::MissingList,
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
            Self::Ask { number, .. } | Self::Heard { number, .. } => body.u32(*number),
            Self::Offer { rails, endpoint, .. } | Self::Answer { rails, endpoint, .. } => {
                body.u8(rails.0);
                endpoint.emit(&mut body);
            }
            Self::Ready { reach, .. } => reach.emit(&mut body),
            Self::MissingList { missing_list, .. } => missing_list.emit(&mut body),
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
            | Self::Ready { attempt, .. }
            | Self::Ask { attempt, .. }
            | Self::Heard { attempt, .. }
            | Self::MissingList { attempt, .. } => Some(*attempt),
        }
    }

    /// Parses a frame's body. `rails` is the number of rails at set-up.
    ///
    /// # Errors
    /// The frame is not about recovery, or its body is too short, too long or invalid.
    pub fn parse(kind: Kind, body: &[u8], rails: u8) -> Result<Self, Violation> {
        let mut body = Reader(body);
        let all = RailMask::first(rails.min(8));
        let message = match kind {
            Kind::Halt => Self::Halt {
                attempt: body.u32()?,
                usable: rail_mask(&mut body, all)?,
                cause: body.name()?,
            },
            Kind::Ports => Self::Ports { usable: rail_mask(&mut body, all)? },
            Kind::Offer => {
                let (attempt, (rails, endpoint)) = (body.u32()?, end(&mut body, all)?);
                Self::Offer { attempt, rails, endpoint }
            }
            Kind::Answer => {
                let (attempt, (rails, endpoint)) = (body.u32()?, end(&mut body, all)?);
                Self::Answer { attempt, rails, endpoint }
            }
            Kind::Ready => Self::Ready { attempt: body.u32()?, reach: Reach::parse(&mut body)? },
            Kind::Ask => Self::Ask { attempt: body.u32()?, number: body.u32()? },
            Kind::Heard => Self::Heard { attempt: body.u32()?, number: body.u32()? },
            Kind::MissingList => Self::MissingList {
                attempt: body.u32()?,
                missing_list: MissingList::parse(&mut body)?,
            },
            Kind::Hello
            | Kind::Reply
            | Kind::Commit
            | Kind::Refuse
            | Kind::Goodbye
            | Kind::Resume
            | Kind::WaitQuestion
            | Kind::WaitAnswer
            | Kind::Redial => {
                return Err(violation!("{kind:?} is not a message about recovery"));
            }
        };
        body.end()?;
        Ok(message)
    }
}

fn rail_mask(body: &mut Reader<'_>, all: RailMask) -> Result<RailMask, Violation> {
    within(body.u8()?, all)
}

fn within(numbers: u8, all: RailMask) -> Result<RailMask, Violation> {
    let mask = RailMask(numbers);
    if mask.is_within(all) {
        Ok(mask)
    } else {
        Err(violation!("rails {mask} of a connection that has rails {all}"))
    }
}

/// Rails, and the end that has queue pairs on them.
fn end(body: &mut Reader<'_>, all: RailMask) -> Result<(RailMask, Endpoint), Violation> {
    let (rails, endpoint) = (body.u8()?, Endpoint::parse(body)?);
    Ok((rails_of_end(rails, all, &endpoint)?, endpoint))
}

/// The rails with these `numbers`, of `all`, on which `endpoint` has queue pairs.
///
/// # Errors
/// They are not of `all`, or not as many as the end has.
pub(crate) fn rails_of_end(
    numbers: u8,
    all: RailMask,
    endpoint: &Endpoint,
) -> Result<RailMask, Violation> {
    let rails = within(numbers, all)?;
    if endpoint.rails.len() != usize::from(rails.count()) {
        let count = endpoint.rails.len();
        return Err(violation!(
            "{} has queue pairs on {count} rails but lists rails {rails}",
            endpoint.name
        ));
    }
    Ok(rails)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RING_SLOTS;
    use crate::cts::Cts;
    use crate::recovery::machine::Action;
    use crate::recovery::missing_list::MissingMessage;
    use crate::sample::endpoint;
    use std::time::Duration;

    fn missing(seq: u32) -> MissingMessage {
        let cts = Cts { addr: u64::from(seq) << 33 | 5, length: 7, rkeys: [seq, 2], tag: 3, seq };
        MissingMessage { cts, extra: [4, seq] }
    }

    fn all() -> Vec<Message> {
        let oldest = u32::MAX - 3;
        let seqs = (0..RING_SLOTS as u32)
            .filter(|i| i % 30 == 29)
            .map(|i| missing(oldest.wrapping_add(i)));
        let missing_list = MissingList {
            oldest,
            next: oldest.wrapping_add(RING_SLOTS as u32),
            missing: seqs.collect(),
        };
        let (rails, attempt) = (RailMask(0b1010), 0x0102_0304);
        let reach =
            Reach { limit: Duration::from_micros(70_001), round_trip: Duration::from_micros(3) };
        vec![
            Message::Halt {
                attempt,
                usable: RailMask::NONE,
                cause: "port 1 of rdma0 is down".into(),
            },
            Message::Ports { usable: RailMask(0b1111) },
            Message::Offer { attempt, rails, endpoint: endpoint(2, 3, true) },
            Message::Answer { attempt, rails, endpoint: endpoint(2, 8, false) },
            Message::Ready { attempt, reach },
            Message::Ask { attempt, number: 9 },
            Message::Heard { attempt, number: u32::MAX },
            Message::MissingList { attempt, missing_list },
            Message::MissingList {
                attempt,
                missing_list: MissingList { oldest: 5, next: 5, missing: Vec::new() },
            },
        ]
    }

    /// The log is for people, so it shows no fields.
    #[test]
    fn a_message_and_what_sends_it_are_reported_in_words() {
        for message in all() {
            let text = Action::Send(message).to_string();
            let fields = ["{", "}", "[", "RailMask", "attempt:"];
            assert!(!fields.iter().any(|field| text.contains(field)), "{text}");
        }
        let offer =
            Message::Offer { attempt: 4, rails: RailMask(0b101), endpoint: endpoint(2, 3, true) };
        assert_eq!(
            Action::Send(offer).to_string(),
            "sends Offer of attempt 4: 6 queue pair(s) on rail(s) 0, 2"
        );
    }

    #[test]
    fn a_message_is_parsed_as_it_was_emitted() {
        for message in all() {
            assert_eq!(Message::parse(message.kind(), &message.body(), 4).as_ref(), Ok(&message));
        }
    }

    #[test]
    fn every_cut_of_a_message_and_every_byte_too_many_are_refused() {
        for message in all() {
            let (kind, mut body) = (message.kind(), message.body());
            for end in 0..body.len() {
                assert!(Message::parse(kind, &body[..end], 4).is_err(), "{kind:?} of {end} bytes");
            }
            body.push(0);
            assert!(Message::parse(kind, &body, 4).is_err());
        }
    }

    #[test]
    fn a_message_of_another_kind_is_refused() {
        for kind in
            [Kind::Hello, Kind::Reply, Kind::Commit, Kind::Refuse, Kind::Goodbye, Kind::Resume]
        {
            assert!(Message::parse(kind, &[0; 4], 4).is_err());
        }
    }

    #[test]
    fn rails_that_the_connection_does_not_have_are_refused() {
        for message in all() {
            let is_refused = Message::parse(message.kind(), &message.body(), 3).is_err();
            let names_rail_3 = matches!(
                message,
                Message::Ports { .. } | Message::Offer { .. } | Message::Answer { .. }
            );
            assert_eq!(is_refused, names_rail_3, "{message:?}");
        }
        let offer =
            Message::Offer { attempt: 1, rails: RailMask(0b111), endpoint: endpoint(2, 1, true) };
        assert!(
            Message::parse(Kind::Offer, &offer.body(), 4).is_err(),
            "queue pairs on two rails for three"
        );
        let offer =
            Message::Offer { attempt: 1, rails: RailMask::NONE, endpoint: endpoint(1, 1, true) };
        assert!(Message::parse(Kind::Offer, &offer.body(), 4).is_err(), "no rail");
    }

    #[test]
    fn the_longest_missing_list_has_at_most_24_kib() {
        let missing_list =
            MissingList { oldest: 1, next: 513, missing: (1..513).map(missing).collect() };
        let message = Message::MissingList { attempt: 1, missing_list };
        assert!(message.body().len() <= 24 << 10);
        assert_eq!(Message::parse(Kind::MissingList, &message.body(), 1), Ok(message));
        let one_more =
            MissingList { oldest: 1, next: 514, missing: (1..514).map(missing).collect() };
        let body = Message::MissingList { attempt: 1, missing_list: one_more }.body();
        assert!(Message::parse(Kind::MissingList, &body, 1).is_err());
    }
}
