//! NCCL's operations as reported to a profiler: their names for people, and their form in messages
//! between processes.

use crate::codec::{Reader, Writer};
use crate::{Violation, violation};
use std::fmt;

/// The most bytes of a communicator's name; a longer one is truncated.
pub const MAX_NAME_BYTES: usize = 31;
/// Numbers of operations are below this one.
const NUMBERS: u64 = 1 << 47;

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Function {
    /// None of the others.
    Other,
    /// ncclAllGather.
    AllGather,
    /// ncclAllReduce.
    AllReduce,
    /// ncclAlltoAll.
    AlltoAll,
    /// ncclBroadcast.
    Broadcast,
    /// ncclGather.
    Gather,
    /// ncclReduce.
    Reduce,
    /// ncclReduceScatter.
    ReduceScatter,
    /// ncclScatter.
    Scatter,
    /// ncclSend.
    Send,
    /// ncclRecv.
    Recv,
    /// Several sends and receives in one group.
    SendRecv,
}

impl Function {
    /// All functions, each at the index that is its number.
    const ALL: [(Self, &str); 12] = [
        (Self::Other, "operation"),
        (Self::AllGather, "AllGather"),
        (Self::AllReduce, "AllReduce"),
        (Self::AlltoAll, "AlltoAll"),
        (Self::Broadcast, "Broadcast"),
        (Self::Gather, "Gather"),
        (Self::Reduce, "Reduce"),
        (Self::ReduceScatter, "ReduceScatter"),
        (Self::Scatter, "Scatter"),
        (Self::Send, "Send"),
        (Self::Recv, "Recv"),
        (Self::SendRecv, "SendRecv"),
    ];
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The one that NCCL calls `name`.
    pub fn named(name: &[u8]) -> Self {
        let found = Self::ALL.iter().skip(1).find(|(_, known)| known.as_bytes() == name);
        found.map_or(Self::Other, |(function, _)| *function)
    }

    /// NCCL's name for it.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Whether NCCL implements it by sends and receives, which use separate connections.
    pub fn is_point_to_point(self) -> bool {
        matches!(
            self,
            Self::AlltoAll
                | Self::Gather
                | Self::Scatter
                | Self::Send
                | Self::Recv
                | Self::SendRecv
        )
    }

    fn from_bits(bits: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(bits).ok()?).map(|(function, _)| *function)
    }
}

/// A function, and one of its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// What it does.
    pub function: Function,
    /// NCCL's number, which counts the operations of a communicator and function from 0. Sends and
    /// receives have none.
    pub number: Option<u64>,
}

impl Call {
    /// Encodes it in 60 bits. Never 0.
    pub fn to_bits(self) -> u64 {
        let number = self.number.map_or(NUMBERS, |number| number % NUMBERS);
        (1 << 59) | ((self.function as u64) << 48) | number
    }

    /// Decodes the result of [`Self::to_bits`]; `None` for other values.
    pub fn from_bits(bits: u64) -> Option<Self> {
        let number = bits & ((1 << 48) - 1);
        let function = Function::from_bits((bits >> 48) & ((1 << 11) - 1))?;
        let is_made = bits >> 59 == 1 && number <= NUMBERS;
        is_made.then(|| Self { function, number: Some(number).filter(|number| *number < NUMBERS) })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.function.name())?;
        self.number.map_or(Ok(()), |number| write!(f, " number {number}"))
    }
}

/// The operation of a connection's messages.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operation {
    /// Which one.
    pub call: Call,
    /// The lower 48 bits of NCCL's number of the communicator.
    pub communicator: u64,
    /// The communicator's name, if its user has set one; otherwise empty.
    pub name: String,
    /// The peer's rank in that communicator.
    pub peer: PeerRank,
}

/// The rank of a connection's peer in the communicator of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerRank {
    /// It is this one.
    Known(u32),
    /// The rank of the peer's process itself.
    Own,
    /// Unknown. The communicator may differ from the connection's.
    Unknown,
}

impl PeerRank {
    /// Ranks are below this number; it and the next one stand for the other variants.
    const RANKS: u32 = 1 << 31;

    fn to_bits(self) -> u32 {
        match self {
            Self::Known(rank) => rank % Self::RANKS,
            Self::Own => Self::RANKS,
            Self::Unknown => Self::RANKS + 1,
        }
    }

    fn from_bits(bits: u32) -> Result<Self, Violation> {
        match bits {
            rank if rank < Self::RANKS => Ok(Self::Known(rank)),
            Self::RANKS => Ok(Self::Own),
            _ if bits == Self::RANKS + 1 => Ok(Self::Unknown),
            _ => Err(violation!("{bits:#x} is not a rank")),
        }
    }
}

impl Operation {
    pub(super) fn emit(&self, to: &mut Writer) {
        to.u64(self.call.to_bits());
        to.u64(self.communicator);
        to.name(cut(&self.name));
        to.u32(self.peer.to_bits());
    }

    pub(super) fn parse(from: &mut Reader<'_>) -> Result<Self, Violation> {
        let bits = from.u64()?;
        let call =
            Call::from_bits(bits).ok_or_else(|| violation!("{bits:#x} is not an operation"))?;
        let (communicator, name) = (from.u64()?, from.name()?);
        if name.len() > MAX_NAME_BYTES || communicator >> 48 != 0 {
            return Err(violation!(
                "communicator {communicator:#x} with a name of {} bytes",
                name.len()
            ));
        }
        Ok(Self { call, communicator, name, peer: PeerRank::from_bits(from.u32()?)? })
    }
}

/// The part of a communicator's name that is kept.
pub fn cut(name: &str) -> &str {
    let end = (0..=name.len().min(MAX_NAME_BYTES)).rev().find(|at| name.is_char_boundary(*at));
    &name[..end.unwrap_or(0)]
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, communicator, name, .. } = self;
        match name.as_str() {
            "" => write!(f, "{call} of communicator {communicator:#x}"),
            name => write!(f, "{call} of communicator {name}"),
        }
    }
}

/// Whether NCCL in a process has begun an operation. NCCL reports it after the launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// Unknown.
    Unknown,
    /// It has.
    Yes,
    /// It has not. The number is that of the last operation of the same function and communicator
    /// that it has begun, if any.
    No(Option<u64>),
}

impl Begun {
    pub(super) fn emit(self, to: &mut Writer) {
        let (kind, last) = match self {
            Self::Unknown => (0, 0),
            Self::Yes => (1, 0),
            Self::No(last) => (2, last.map_or(0, |last| last + 1)),
        };
        to.u8(kind);
        to.u64(last);
    }

    pub(super) fn parse(from: &mut Reader<'_>) -> Result<Self, Violation> {
        match (from.u8()?, from.u64()?) {
            (0, 0) => Ok(Self::Unknown),
            (1, 0) => Ok(Self::Yes),
            (2, last) if last <= NUMBERS => Ok(Self::No(last.checked_sub(1))),
            (kind, last) => {
                Err(violation!("{kind} and {last} do not say whether an operation has begun"))
            }
        }
    }
}

/// The operations that a process has begun in one of NCCL's communicators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BegunOperations {
    /// As [`Operation::communicator`].
    pub communicator: u64,
    /// This process's rank in it.
    pub rank: u32,
    /// For each function, one more than the last number begun; 0 if none.
    pub begun: [u64; Function::COUNT],
}

impl BegunOperations {
    /// Whether `call` has begun.
    fn of(&self, call: Call) -> Begun {
        let Some(number) = call.number else { return Begun::Unknown };
        let begun = self.begun[call.function as usize];
        if number < begun { Begun::Yes } else { Begun::No(begun.checked_sub(1)) }
    }
}

/// Whether the process that has begun `all`, in the order of their communicators, has begun
/// `operation`, in which a peer waits. Unknown if the peer waits for another rank, on whose behalf
/// this process only sends (PXN).
pub(super) fn begun(all: &[BegunOperations], operation: &Operation) -> Begun {
    // Several GPUs of a process may be in one communicator.
    let first = all.partition_point(|progress| progress.communicator < operation.communicator);
    let mut here =
        all[first..].iter().take_while(|progress| progress.communicator == operation.communicator);
    let found = match operation.peer {
        PeerRank::Known(rank) => here.find(|progress| progress.rank == rank),
        PeerRank::Own => here.next().filter(|_| here.next().is_none()),
        PeerRank::Unknown => None,
    };
    found.map_or(Begun::Unknown, |progress| progress.of(operation.call))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_has_its_number_and_nccls_name() {
        for (place, (function, name)) in Function::ALL.into_iter().enumerate() {
            assert_eq!((function as usize, function.name()), (place, name));
            assert_eq!(
                Function::named(name.as_bytes()) == function,
                place > 0 || name == "operation",
                "{name}"
            );
        }
        assert_eq!(Function::named(b"PutSignal"), Function::Other);
    }

    #[test]
    fn a_call_survives_as_bits_which_are_never_0() {
        for number in [None, Some(0), Some(NUMBERS - 1)] {
            for (function, _) in Function::ALL {
                let call = Call { function, number };
                assert!(call.to_bits() != 0 && call.to_bits() >> 60 == 0);
                assert_eq!(Call::from_bits(call.to_bits()), Some(call));
            }
        }
        let good = Call { function: Function::SendRecv, number: Some(7) }.to_bits();
        for wrong in
            [0, good ^ 1 << 59, good | 1 << 60, good + (1 << 48), good | NUMBERS, good | 1 << 58]
        {
            assert_eq!(Call::from_bits(wrong), None, "{wrong:#x}");
        }
    }

    #[test]
    fn bits_that_no_ferrite_has_made_are_refused() {
        for rank in [
            PeerRank::Known(0),
            PeerRank::Known(PeerRank::RANKS - 1),
            PeerRank::Own,
            PeerRank::Unknown,
        ] {
            assert_eq!(PeerRank::from_bits(rank.to_bits()), Ok(rank));
        }
        assert!(PeerRank::from_bits(PeerRank::RANKS + 2).is_err());
        let begun = |kind: u8, last: u64| {
            let mut bytes = vec![kind];
            bytes.extend(last.to_le_bytes());
            Begun::parse(&mut Reader(&bytes))
        };
        assert_eq!(
            [begun(2, 0), begun(2, NUMBERS)],
            [Ok(Begun::No(None)), Ok(Begun::No(Some(NUMBERS - 1)))]
        );
        assert!(begun(2, NUMBERS + 1).is_err() && begun(1, 1).is_err());
    }

    #[test]
    fn an_operation_is_named_by_its_communicators_name_or_number() {
        let call = Call { function: Function::AllReduce, number: Some(41) };
        let named = |name: &str| {
            Operation { call, communicator: 0xabc, name: name.into(), peer: PeerRank::Own }
                .to_string()
        };
        assert_eq!(named(""), "AllReduce number 41 of communicator 0xabc");
        assert_eq!(named("tp"), "AllReduce number 41 of communicator tp");
        assert_eq!(Call { function: Function::Send, number: None }.to_string(), "Send");
    }

    #[test]
    fn what_is_begun_is_reported_for_the_rank_that_is_asked() {
        let progress = |rank, count| {
            let mut begun = [0; Function::COUNT];
            begun[Function::AllReduce as usize] = count;
            BegunOperations { communicator: 5, rank, begun }
        };
        let asked = |all: &[BegunOperations], communicator, peer, function, number| {
            let call = Call { function, number };
            begun(all, &Operation { call, communicator, name: String::new(), peer })
        };
        let all_reduce = Function::AllReduce;
        let of = PeerRank::Known;
        let two = [progress(2, 8), progress(3, 0)];
        assert_eq!(asked(&two, 5, of(2), all_reduce, Some(7)), Begun::Yes);
        assert_eq!(asked(&two, 5, of(2), all_reduce, Some(8)), Begun::No(Some(7)));
        assert_eq!(asked(&two, 5, of(3), all_reduce, Some(0)), Begun::No(None));
        assert_eq!(asked(&two, 5, of(2), Function::Reduce, Some(0)), Begun::No(None));
        let unknown = [
            asked(&two, 6, of(2), all_reduce, Some(7)),
            asked(&two, 5, of(4), all_reduce, Some(7)),
            asked(&two, 5, of(2), Function::Send, None),
            asked(&two[..1], 5, of(9), all_reduce, Some(7)),
            asked(&two, 5, PeerRank::Own, all_reduce, Some(7)),
            asked(&two[..1], 5, PeerRank::Unknown, all_reduce, Some(7)),
        ];
        assert_eq!(unknown, [Begun::Unknown; 6]);
        assert_eq!(asked(&two[..1], 5, PeerRank::Own, all_reduce, Some(7)), Begun::Yes);
    }

    #[test]
    fn a_communicator_has_48_bits_and_a_name_of_31_bytes() {
        let call = Call { function: Function::AllReduce, number: Some(1) };
        let parsed = |communicator, name: &str| {
            let mut body = Writer::default();
            body.u64(call.to_bits());
            body.u64(communicator);
            body.name(name);
            body.u32(PeerRank::Own.to_bits());
            Operation::parse(&mut Reader(&body.0)).is_ok()
        };
        let longest = "n".repeat(MAX_NAME_BYTES);
        assert!(parsed((1 << 48) - 1, &longest) && parsed(0, ""));
        assert!(!parsed(1 << 48, "") && !parsed(0, &(longest + "n")));
    }

    #[test]
    fn sends_and_receives_have_connections_of_their_own() {
        let found = Function::ALL.iter().filter(|(function, _)| function.is_point_to_point());
        let names: Vec<_> = found.map(|(_, name)| *name).collect();
        assert_eq!(names, ["AlltoAll", "Gather", "Scatter", "Send", "Recv", "SendRecv"]);
    }
}
