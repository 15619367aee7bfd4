//! The two ends of a connection, and messages that were timed at both.

use std::collections::BTreeMap;

use super::recording::TimedEnd;
use super::timed::Timed;

/// Of all `ends` those that are of one connection: the sender's place and the receiver's.
pub(crate) fn connections<'a>(ends: impl Iterator<Item = &'a TimedEnd>) -> Vec<(usize, usize)> {
    let mut known: BTreeMap<u64, [Vec<usize>; 2]> = BTreeMap::new();
    for (place, end) in ends.enumerate().filter(|(_, end)| end.connection != 0) {
        known.entry(end.connection).or_default()[usize::from(end.end.is_sender)].push(place);
    }
    // A number that several have tells nothing.
    let pair = |[receivers, senders]: &[Vec<usize>; 2]| match (&senders[..], &receivers[..]) {
        ([sender], [receiver]) => Some((*sender, *receiver)),
        _ => None,
    };
    known.values().filter_map(pair).collect()
}

/// The messages that both ends have timed. Of an `irecv` of several messages it is not known which of them the sender's is.
pub(crate) fn messages<'a>(
    sender: &'a TimedEnd,
    receiver: &'a TimedEnd,
) -> impl Iterator<Item = (&'a Timed, &'a Timed)> {
    let of_one = |received: &&Timed| received.messages == 1;
    sender.messages.values().filter_map(move |sent| Some((sent, receiver.messages.get(&sent.number).filter(of_one)?)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::top::end::End;
    use crate::trace::timed::tests::words;
    use nccl_net::inspect::stats::layout::{OPEN, RECEIVER, RECORD_WORDS, SENDER, record};

    /// An end with these messages: number, completion, stages.
    pub(crate) fn end(is_sender: bool, connection: u64, messages: &[(u64, u64, [u64; 3])]) -> TimedEnd {
        let mut record = vec![0; RECORD_WORDS];
        record[record::STATE] = OPEN;
        record[record::DIRECTION] = if is_sender { SENDER } else { RECEIVER };
        let all = messages.iter().filter_map(|(number, at, stages)| Timed::new(&words(*number, *at, *stages)));
        TimedEnd {
            end: End::new(0, &record),
            connection,
            messages: all.map(|message| (message.number, message)).collect(),
        }
    }

    #[test]
    fn ends_with_the_same_number_are_of_one_connection_unless_there_are_more_than_two() {
        let ends = [
            (true, 5),
            (false, 7),
            (false, 5),
            (true, 7),
            (true, 0),
            (false, 0),
            (true, 9),
            (true, 8),
            (false, 8),
            (false, 8),
        ];
        let ends: Vec<_> = ends.into_iter().map(|(is_sender, number)| end(is_sender, number, &[])).collect();
        assert_eq!(connections(ends.iter()), [(0, 2), (3, 1)]);
    }

    #[test]
    fn messages_with_the_same_number_are_the_same_unless_the_receive_has_several() {
        let sender = end(true, 1, &[(1, 100, [1; 3]), (5, 200, [1; 3]), (9, 300, [1; 3])]);
        let mut receiver = end(false, 1, &[(5, 220, [1; 3]), (9, 310, [1; 3]), (13, 400, [1; 3])]);
        let both = |receiver: &TimedEnd| messages(&sender, receiver).map(|(one, _)| one.number).collect::<Vec<_>>();
        assert_eq!(both(&receiver), [5, 9]);
        receiver.messages.get_mut(&5).expect("it is there").messages = 2;
        assert_eq!(both(&receiver), [9]);
    }
}
