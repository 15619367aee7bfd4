//! What an end of a connection waits for, derived from the counters of both ends.

use super::numbers::{End, Numbers};
use crate::{Violation, violation};

/// What one end waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// For nothing.
    NotWaiting,
    /// Unknown: the peer has not been asked, or has not answered yet.
    Unknown,
    /// For a busy peer: its counters, or those of other connections of its process, have changed
    /// within the last second.
    Moving,
    /// For the device's own read of GPU memory, the flush.
    Flush,
    /// For NCCL in this process, which makes no calls although requests are outstanding.
    OwnNotTested,
    /// For the recovery of the connection.
    Recovering,
    /// For a peer whose process has ended.
    PeerGone,
    /// For a process that does not answer although its control connection exists.
    PeerSilent,
    /// Unknown: the control connection is lost.
    Unreachable,
    /// For NCCL in the peer's process, which has not accepted the connection.
    NotAccepted,
    /// For acknowledgements; whether the messages have arrived is unknown.
    Unacknowledged,
    /// For messages that were sent and have not arrived.
    DataLost,
    /// For acknowledgements of messages that have arrived.
    AcknowledgementsLost,
    /// For clear-to-sends that the receiver must send, or has sent, and that have not arrived.
    ClearToSendsLost,
    /// For a clear-to-send with a tag other than the present ones.
    OtherTags,
    /// For NCCL in the peer's process, which makes no calls although requests are outstanding.
    PeerNotTested,
    /// For a peer that itself waits for another one.
    PeerWaits,
    /// For a receiver where NCCL has not called `irecv`.
    PeerHasNotAsked,
    /// For a sender where NCCL has not called `isend`.
    PeerHasNotSent,
    /// Its peer waits for it: NCCL here has not called `irecv`.
    OwnHasNotAsked,
    /// Its peer waits for it: NCCL here has not called `isend`.
    OwnHasNotSent,
    /// For a peer that waits for this process in the end: this one has begun operations of two
    /// communicators in another order.
    OrderDiffers,
}

impl Verdict {
    const ALL: [Self; 22] = [
        Self::NotWaiting,
        Self::Unknown,
        Self::Moving,
        Self::Flush,
        Self::OwnNotTested,
        Self::Recovering,
        Self::PeerGone,
        Self::PeerSilent,
        Self::Unreachable,
        Self::NotAccepted,
        Self::Unacknowledged,
        Self::DataLost,
        Self::AcknowledgementsLost,
        Self::ClearToSendsLost,
        Self::OtherTags,
        Self::PeerNotTested,
        Self::PeerWaits,
        Self::PeerHasNotAsked,
        Self::PeerHasNotSent,
        Self::OwnHasNotAsked,
        Self::OwnHasNotSent,
        Self::OrderDiffers,
    ];

    /// Whether it names a cause, rather than a further process or an unknown state.
    pub fn is_cause(self) -> bool {
        use Verdict::{Moving, NotWaiting, OwnHasNotAsked, OwnHasNotSent, PeerWaits, Unknown};
        !matches!(self, NotWaiting | Unknown | Moving | PeerWaits | OwnHasNotAsked | OwnHasNotSent)
    }

    pub(super) fn to_bits(self) -> u8 {
        self as u8
    }

    pub(super) fn from_bits(bits: u8) -> Result<Self, Violation> {
        let found = Self::ALL.into_iter().find(|verdict| verdict.to_bits() == bits);
        found.ok_or_else(|| violation!("{bits} is not a verdict"))
    }
}

/// The known state of an end's peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer<'a> {
    /// Nothing yet.
    Unknown,
    /// It has reported the state of its end and its process.
    Answered {
        /// Its end.
        end: &'a End,
        /// Whether its process waits for another peer.
        waits: bool,
        /// Whether its process has moved messages, or begun to wait, within the last second.
        is_busy: bool,
    },
    /// Its NCCL has not accepted the connection.
    NotAccepted,
    /// It was asked several times and does not answer, although the control connection exists.
    Silent,
    /// The control connection is lost.
    Unreachable,
    /// Its process has ended, or it has closed the connection.
    Gone,
}

/// An end whose counters have changed within this time makes progress. Milliseconds.
const STILL_MS: u32 = 1000;
/// NCCL has stopped testing outstanding requests after this time without a call. Milliseconds.
pub(super) const UNTESTED_MS: u32 = 3000;

/// What the end `mine` waits for.
pub fn judge(mine: &End, peer: Peer<'_>) -> Verdict {
    if !mine.numbers.is_waiting() {
        return match peer {
            _ if mine.recovers => Verdict::Recovering,
            Peer::Answered { end, .. } => owed(&mine.numbers, &end.numbers),
            _ => Verdict::NotWaiting,
        };
    }
    match peer {
        Peer::Gone => Verdict::PeerGone,
        _ if mine.recovers => Verdict::Recovering,
        _ if mine.is_untested => Verdict::OwnNotTested,
        _ if is_flush_only(&mine.numbers) => Verdict::Flush,
        Peer::Unknown => Verdict::Unknown,
        Peer::NotAccepted => Verdict::NotAccepted,
        Peer::Silent => Verdict::PeerSilent,
        Peer::Unreachable if is_unacknowledged(&mine.numbers) => Verdict::Unacknowledged,
        Peer::Unreachable => Verdict::Unreachable,
        Peer::Answered { end, .. } if end.recovers => Verdict::Recovering,
        Peer::Answered { end, .. } if end.is_untested => Verdict::PeerNotTested,
        Peer::Answered { end, .. } if end.still_ms < STILL_MS => Verdict::Moving,
        Peer::Answered { end, waits, is_busy } => match judge_numbers(mine, end) {
            Verdict::PeerHasNotAsked | Verdict::PeerHasNotSent if waits => Verdict::PeerWaits,
            Verdict::PeerHasNotAsked | Verdict::PeerHasNotSent if is_busy => Verdict::Moving,
            verdict => verdict,
        },
    }
}

/// What the idle end `mine` owes its peer.
fn owed(mine: &Numbers, theirs: &Numbers) -> Verdict {
    match (*mine, *theirs) {
        (Numbers::Receiver { .. }, Numbers::Sender { sent, acknowledged, wants: true, .. })
            if sent == acknowledged =>
        {
            Verdict::OwnHasNotAsked
        }
        (
            Numbers::Sender { seen, sent, .. },
            Numbers::Receiver { posted, announced, arrived, .. },
        ) if posted != arrived && (seen, sent) == (announced, arrived) => Verdict::OwnHasNotSent,
        _ => Verdict::NotWaiting,
    }
}

fn is_flush_only(numbers: &Numbers) -> bool {
    matches!(*numbers, Numbers::Receiver { posted, arrived, flushes: true, .. } if posted == arrived)
}

fn is_unacknowledged(numbers: &Numbers) -> bool {
    matches!(*numbers, Numbers::Sender { sent, acknowledged, .. } if sent != acknowledged)
}

/// Whether `a` is before `b`, modulo 2^32.
fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The verdict from the counters of two ends that stand still.
fn judge_numbers(mine: &End, theirs: &End) -> Verdict {
    let is_sender = mine.numbers.is_sender();
    let (sender, receiver) = if is_sender { (mine, theirs) } else { (theirs, mine) };
    let (
        &Numbers::Sender { seen, sent, acknowledged, wants },
        &Numbers::Receiver { posted, announced, arrived, .. },
    ) = (&sender.numbers, &receiver.numbers)
    else {
        return Verdict::Unknown;
    };
    // After the first message with a lost acknowledgement, a queue pair carries no others.
    if is_before(acknowledged, arrived) && (arrived != sent || is_sender) {
        return Verdict::AcknowledgementsLost;
    }
    // Acknowledged messages have reached the receiver's device, and NCCL has made no call there
    // since. If it has called without success for long, the device must have lost them.
    if is_before(arrived, acknowledged) && receiver.still_ms < UNTESTED_MS {
        return if is_sender { Verdict::PeerNotTested } else { Verdict::OwnNotTested };
    }
    if is_before(arrived, sent) {
        return Verdict::DataLost;
    }
    if is_before(seen, announced) || announced != posted {
        return Verdict::ClearToSendsLost;
    }
    if wants && is_before(sent, seen) {
        return Verdict::OtherTags;
    }
    if is_sender { Verdict::PeerHasNotAsked } else { Verdict::PeerHasNotSent }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(numbers: Numbers) -> End {
        End { numbers, recovers: false, is_untested: false, still_ms: 10_000 }
    }

    fn sender(seen: u32, sent: u32, acknowledged: u32, wants: bool) -> End {
        end(Numbers::Sender { seen, sent, acknowledged, wants })
    }

    fn receiver(posted: u32, announced: u32, arrived: u32) -> End {
        end(Numbers::Receiver { posted, announced, arrived, flushes: false })
    }

    fn answered(end: &End, waits: bool) -> Peer<'_> {
        Peer::Answered { end, waits, is_busy: false }
    }

    /// The verdicts of both ends, the sender's first.
    fn both(sender: &End, receiver: &End, waits: [bool; 2]) -> [Verdict; 2] {
        [judge(sender, answered(receiver, waits[1])), judge(receiver, answered(sender, waits[0]))]
    }

    #[test]
    fn the_end_that_owes_is_named_by_both_ends() {
        let none = [false; 2];
        let asked = both(&sender(5, 5, 5, false), &receiver(8, 8, 5), none);
        let seen = both(&sender(8, 5, 5, false), &receiver(8, 8, 5), none);
        assert_eq!(asked, [Verdict::NotWaiting, Verdict::ClearToSendsLost]);
        assert_eq!(seen, [Verdict::OwnHasNotSent, Verdict::PeerHasNotSent]);
        let wants = both(&sender(5, 5, 5, true), &receiver(5, 5, 5), none);
        assert_eq!(wants, [Verdict::PeerHasNotAsked, Verdict::OwnHasNotAsked]);
        assert_eq!(
            both(&sender(5, 5, 5, true), &receiver(5, 5, 5), [true, true])[0],
            Verdict::PeerWaits
        );
        assert_eq!(
            both(&sender(8, 5, 5, false), &receiver(8, 8, 5), [true, true])[1],
            Verdict::PeerWaits
        );
    }

    #[test]
    fn nothing_is_owed_to_a_sender_whose_messages_are_not_acknowledged() {
        let verdicts = both(&sender(6, 6, 5, true), &receiver(6, 6, 6), [false; 2]);
        assert_eq!(verdicts[1], Verdict::NotWaiting);
    }

    #[test]
    fn what_is_lost_on_the_path_is_reported_from_the_numbers_whether_or_not_a_peer_waits() {
        for waits in [false, true] {
            let path = |s: &End, r: &End| both(s, r, [waits; 2]);
            assert_eq!(path(&sender(8, 7, 5, false), &receiver(8, 8, 5)), [Verdict::DataLost; 2]);
            assert_eq!(
                path(&sender(8, 7, 5, false), &receiver(8, 8, 6)),
                [Verdict::AcknowledgementsLost; 2]
            );
            let acknowledgements = path(&sender(8, 7, 5, false), &receiver(7, 7, 7));
            assert_eq!(acknowledgements, [Verdict::AcknowledgementsLost, Verdict::NotWaiting]);
            assert_eq!(
                path(&sender(5, 5, 5, true), &receiver(8, 8, 5)),
                [Verdict::ClearToSendsLost; 2]
            );
            assert_eq!(
                path(&sender(5, 5, 5, true), &receiver(8, 5, 5)),
                [Verdict::ClearToSendsLost; 2]
            );
            assert_eq!(path(&sender(8, 5, 5, true), &receiver(8, 8, 5))[0], Verdict::OtherTags);
        }
    }

    #[test]
    fn what_is_acknowledged_is_not_lost_unless_the_receiver_looks_for_it_without_success() {
        let receiver = End { still_ms: 2000, ..receiver(8, 8, 5) };
        let verdicts = both(&sender(8, 8, 8, true), &receiver, [false; 2]);
        assert_eq!(verdicts, [Verdict::PeerNotTested, Verdict::OwnNotTested]);
        let receiver = End { still_ms: UNTESTED_MS, ..receiver };
        assert_eq!(both(&sender(8, 8, 8, true), &receiver, [false; 2]), [Verdict::DataLost; 2]);
    }

    #[test]
    fn numbers_are_compared_modulo_two_to_the_32() {
        let max = u32::MAX;
        let lost = both(&sender(3, 2, max, false), &receiver(3, 3, max), [false; 2]);
        assert_eq!(lost, [Verdict::DataLost; 2]);
        let unseen = both(&sender(max, max, max, true), &receiver(2, 2, max), [false; 2]);
        assert_eq!(unseen, [Verdict::ClearToSendsLost; 2]);
        let owed = both(&sender(2, max, max, false), &receiver(2, 2, max), [false; 2]);
        assert_eq!(owed, [Verdict::OwnHasNotSent, Verdict::PeerHasNotSent]);
    }

    #[test]
    fn what_is_known_of_the_peer_without_its_numbers_comes_in_its_order() {
        let waiting = sender(5, 5, 4, false);
        assert_eq!(judge(&waiting, Peer::Unknown), Verdict::Unknown);
        assert_eq!(judge(&waiting, Peer::Unreachable), Verdict::Unacknowledged);
        assert_eq!(judge(&receiver(5, 5, 4), Peer::Unreachable), Verdict::Unreachable);
        assert_eq!(judge(&waiting, Peer::Silent), Verdict::PeerSilent);
        assert_eq!(judge(&waiting, Peer::NotAccepted), Verdict::NotAccepted);
        let recovering = End { recovers: true, ..waiting };
        assert_eq!(judge(&recovering, Peer::Silent), Verdict::Recovering);
        assert_eq!(judge(&recovering, Peer::Gone), Verdict::PeerGone);
        assert_eq!(
            judge(&End { is_untested: true, ..waiting }, Peer::Silent),
            Verdict::OwnNotTested
        );
        let untested = End { is_untested: true, ..receiver(5, 5, 4) };
        assert_eq!(judge(&waiting, answered(&untested, true)), Verdict::PeerNotTested);
        let moving = End { still_ms: 500, ..receiver(5, 5, 4) };
        assert_eq!(judge(&waiting, answered(&moving, true)), Verdict::Moving);
    }

    /// NCCL may want to send meanwhile.
    #[test]
    fn an_end_that_waits_for_nothing_waits_for_its_recovery_and_owes_nothing() {
        let (idle, waiting) = (sender(8, 5, 5, false), receiver(8, 8, 5));
        let recovering = End { recovers: true, ..idle };
        assert_eq!(judge(&idle, answered(&waiting, true)), Verdict::OwnHasNotSent);
        assert_eq!(judge(&recovering, answered(&waiting, true)), Verdict::Recovering);
        assert_eq!(judge(&recovering, Peer::Unknown), Verdict::Recovering);
    }

    #[test]
    fn a_flush_is_what_an_end_waits_for_only_if_it_waits_for_nothing_else() {
        let flushing =
            |arrived| end(Numbers::Receiver { posted: 5, announced: 5, arrived, flushes: true });
        assert_eq!(judge(&flushing(5), Peer::Unknown), Verdict::Flush);
        let peer = sender(5, 4, 4, false);
        assert_eq!(judge(&flushing(4), answered(&peer, false)), Verdict::PeerHasNotSent);
    }

    #[test]
    fn a_peer_that_moves_other_messages_is_not_blamed() {
        let peer = sender(5, 4, 4, false);
        let busy = |waits| Peer::Answered { end: &peer, waits, is_busy: true };
        assert_eq!(judge(&receiver(5, 5, 4), busy(false)), Verdict::Moving);
        assert_eq!(judge(&receiver(5, 5, 4), busy(true)), Verdict::PeerWaits);
    }

    #[test]
    fn each_verdict_has_a_number_of_its_own() {
        for verdict in Verdict::ALL {
            assert_eq!(Verdict::from_bits(verdict.to_bits()), Ok(verdict));
        }
        assert!(Verdict::from_bits(Verdict::ALL.len() as u8).is_err());
    }
}
