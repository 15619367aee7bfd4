//! Two flows over an in-memory fabric, driven by a seed.
//!
//! The fabric keeps order within a lane and direction and nothing else: it delays, interleaves, and on a bad day cuts a
//! lane for good, failing what was on it. QpSet are dealt out to one to four rails, each of which has a speed and keys of
//! its own; the two ends may have different numbers of rails and lanes. Whatever the seed, a receive that completes has
//! the bytes of the one message it was meant for, nothing is written into a buffer that has completed, and unless a lane
//! was cut everything completes. Send queues have room for one work request of each message and a few further ones, and never
//! overflow.
//!
//! `FERRITE_SIM_SEEDS=1000000` runs that many schedules, `FERRITE_SIM_SEED=42` just that one.

use super::endpoint::{Ece, Endpoint, LaneEnd, RailEnd};
use super::handshake::Terms;
use super::recv::{Buffer, RecvFlow};
use super::requests::RequestId;
use super::room::{Room, STRIPE_REQUESTS_MAX};
use super::send::SendFlow;
use super::stripe::{LINE_BYTES, Striping};
use super::wire::{Imm, Place, Slot, SlotWords, slot_halves};
use super::{Lane, MAX_GROUP, MAX_RAILS, RING_SLOTS, Violation};
use std::collections::{HashMap, VecDeque};

/// splitmix64: every seed is a different schedule.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % sides
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }

    fn length(&mut self) -> u32 {
        let limit = [1, 200, 9_000, 70_000, 3 << 20, 20 << 20][self.roll(6) as usize];
        self.roll(limit) as u32
    }
}

/// What a lane carries from the sender to the receiver.
#[derive(Debug, Clone, Copy)]
enum Packet {
    Data {
        addr: u64,
        rkey: u32,
        message: usize,
        offset: u32,
        length: u32,
    },
    Notice(u32),
    /// Everything of a stripe is ahead of this: the acknowledgement of so many work requests.
    Ack(RequestId, u8),
}

/// A message of the plan: the k-th of its tag, for the k-th buffer of its tag.
#[derive(Debug, Clone, Copy)]
struct Message {
    tag: u32,
    length: u32,
    posted: u32,
    group: usize,
}

/// Bytes that arrived in a buffer: from which message, from where.
#[derive(Debug, Default)]
struct Contents {
    pieces: Vec<(u32, u32, usize)>,
    complete: bool,
}

struct World {
    dice: Dice,
    striping: Striping,
    sender: SendFlow,
    receiver: RecvFlow,
    /// The sender's memory: as many halves as a slot has, for each place.
    ring: Vec<SlotWords>,
    /// By the rail that carries them.
    announcements: Vec<VecDeque<(usize, Vec<SlotWords>)>>,
    /// How fast each rail really is, of 16.
    speeds: [u64; MAX_RAILS],
    lanes: Vec<VecDeque<Packet>>,
    acks: Vec<VecDeque<(RequestId, u8)>>,
    /// Above so many bytes the notice of a stripe goes apart.
    apart_above: u32,
    room: Room,
    /// Further work requests that it has room for.
    further_most: u16,
    /// Work requests in each lane's send queue.
    queued: Vec<u32>,
    cut: Option<usize>,
    messages: Vec<Message>,
    /// Of each message's buffer, by rail.
    keys: Vec<[u32; MAX_RAILS]>,
    groups: usize,
    next_group: usize,
    to_send: HashMap<u32, VecDeque<usize>>,
    /// Whether the sender sends nothing else until the message that it has chosen has its slot, and that message.
    insisting: Option<Option<usize>>,
    sending: Vec<(RequestId, usize)>,
    receiving: VecDeque<(RequestId, usize)>,
    contents: Vec<Contents>,
}

/// An end with `lanes` queue pairs on each of `rails` rails.
pub(super) fn endpoint(rails: usize, lanes: usize, split: bool) -> Endpoint {
    let rail = |rail: usize| RailEnd {
        name: format!("rdma{rail} port 1"),
        infiniband: false,
        lid: 0,
        gid: [3 + rail as u8; 16],
        mtu: 5 - rail as u8,
        speed_mbps: 400_000 >> rail,
        lanes: (0..lanes as u32).map(|i| lane(rail as u32, i)).collect(),
    };
    let rails = (0..rails).map(rail).collect();
    Endpoint { name: "rdma of process 42 on host".into(), adaptive_routing: lanes == 2, split, rails }
}

fn lane(rail: u32, i: u32) -> LaneEnd {
    let ece = Ece { vendor_id: 0x15b3, options: rail << 8 | i, comp_mask: 0 };
    LaneEnd { qpn: 100 * rail + i, psn: 7 * i, ece: Some(ece).filter(|_| i % 2 == 1) }
}

/// Key of message `i`'s buffer on a rail.
fn rkey(i: usize, rail: usize) -> u32 {
    (i * MAX_RAILS + rail + 1) as u32
}

/// Address of message `i`'s buffer.
fn address(i: usize) -> u64 {
    (i as u64 + 1) << 32
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mut end = || {
            let rails = if dice.one_in(2) { 1 } else { 1 + dice.roll(MAX_RAILS as u64) as usize };
            endpoint(rails, 1 + dice.roll(4) as usize, !dice.one_in(3))
        };
        let (near, far) = (end(), end());
        let striping = Terms::agree(&near, &far).expect("ends of one kind").striping;
        let uneven = dice.one_in(2);
        let speeds = std::array::from_fn(|_| if uneven { 1 + dice.roll(16) } else { 16 });
        let insists = dice.one_in(3);
        let apart_above = if dice.one_in(2) { u32::MAX } else { 1000 };
        let further_most = 2 + dice.roll(8) as u16;
        let many = if dice.one_in(8) { 400 } else { 60 };
        let groups = 1 + dice.roll(many) as usize;
        let mut messages = Vec::new();
        let mut to_send: HashMap<u32, VecDeque<usize>> = HashMap::new();
        for group in 0..groups {
            let count = if dice.one_in(2) { 1 } else { 1 + dice.roll(MAX_GROUP as u64) as u32 };
            let first_tag = dice.roll(3) as u32;
            for tag in first_tag..first_tag + count {
                let length = dice.length();
                let posted = if dice.one_in(2) { length } else { dice.length() };
                to_send.entry(tag).or_default().push_back(messages.len());
                messages.push(Message { tag, length, posted, group });
            }
        }
        let (lanes, rails) = (usize::from(striping.lanes()), usize::from(striping.rails()));
        Self {
            dice,
            striping,
            sender: SendFlow::new(striping, near.shares_with(&far)),
            receiver: RecvFlow::new(striping),
            ring: vec![SlotWords::default(); RING_SLOTS * slot_halves(rails)],
            announcements: vec![VecDeque::new(); rails],
            speeds,
            lanes: vec![VecDeque::new(); lanes],
            acks: vec![VecDeque::new(); lanes],
            apart_above,
            room: Room::new(further_most),
            further_most,
            queued: vec![0; lanes],
            cut: None,
            contents: messages.iter().map(|_| Contents::default()).collect(),
            keys: (0..messages.len()).map(|i| std::array::from_fn(|rail| rkey(i, rail))).collect(),
            messages,
            groups,
            next_group: 0,
            insisting: insists.then_some(None),
            to_send,
            sending: Vec::new(),
            receiving: VecDeque::new(),
        }
    }

    fn finished(&self) -> bool {
        self.next_group == self.groups
            && self.receiving.is_empty()
            && self.sending.is_empty()
            && self.to_send.values().all(VecDeque::is_empty)
    }

    fn step(&mut self) -> Result<(), Violation> {
        match self.dice.roll(8) {
            0 => self.post(),
            1 => self.submit(),
            2 => self.test_receive(),
            3 => self.test_sends(),
            4 => self.deliver_announcement(),
            5 => self.deliver_ack(),
            _ => self.deliver_packet(),
        }
    }

    fn post(&mut self) -> Result<(), Violation> {
        if self.next_group < self.groups {
            let members: Vec<_> =
                (0..self.messages.len()).filter(|&i| self.messages[i].group == self.next_group).collect();
            let buffer = |&i: &usize| {
                let Message { tag, posted, .. } = self.messages[i];
                Buffer { addr: address(i), length: posted, rkeys: &self.keys[i], tag }
            };
            let buffers: Vec<_> = members.iter().map(buffer).collect();
            if let Some(id) = self.receiver.post(buffers.len(), |i| Ok::<_, Violation>(buffers[i]))? {
                self.receiving.push_back((id, members[0]));
                self.next_group += 1;
            }
        }
        self.announce();
        Ok(())
    }

    fn announce(&mut self) {
        let limit = 1 + self.dice.roll(8) as u32;
        while let Some(places) = self.receiver.poll_announcement(limit) {
            let first = places.start * self.halves();
            let rail = self.dice.roll(self.announcements.len() as u64) as usize;
            self.announcements[rail].push_back((first, self.receiver.encoded(places).to_vec()));
        }
    }

    fn deliver_announcement(&mut self) -> Result<(), Violation> {
        let rail = self.dice.roll(self.announcements.len() as u64) as usize;
        if let Some((first, slots)) = self.announcements[rail].pop_front() {
            self.ring[first..first + slots.len()].copy_from_slice(&slots);
        }
        Ok(())
    }

    /// Halves of a slot.
    fn halves(&self) -> usize {
        self.ring.len() / RING_SLOTS
    }

    fn submit(&mut self) -> Result<(), Violation> {
        let tags: Vec<_> = self.to_send.iter().filter(|(_, queue)| !queue.is_empty()).map(|(tag, _)| *tag).collect();
        if tags.is_empty() {
            return Ok(());
        }
        let message = self.choose(tags);
        let Message { tag, length, .. } = self.messages[message];
        let most = u8::from(length > self.apart_above) + u8::from(length >= Imm::EXPLICIT_LIMIT);
        if !self.room.admits(self.lanes.len(), most) {
            return Ok(());
        }
        let (ring, halves) = (&self.ring, self.halves());
        let slot = |place: Place, half| ring[place.index() * halves + half];
        let read = |seq| Some(slot(Place::of(seq), halves - 1)).filter(|words| Slot::seq_of(words[3]) == seq);
        let Some(transfer) = self.sender.submit(tag, length, read)? else { return Ok(()) };
        assert!(self.sending.iter().all(|(id, _)| *id != transfer.id), "a request id is used twice at once");
        for (stripe, imms) in transfer.stripes(self.sender.shares()) {
            let lane = &mut self.lanes[usize::from(stripe.lane.0)];
            let (offset, length) = (stripe.offset, stripe.length);
            let rkey = transfer.rkey(transfer.rail_of(stripe.lane), |place| slot(place, 0));
            assert_eq!(offset % LINE_BYTES, 0, "a line is cut");
            let addr = transfer.remote_addr + u64::from(offset);
            lane.push_back(Packet::Data { addr, rkey, message, offset, length });
            lane.push_back(Packet::Notice(imms.first.to_bits()));
            lane.extend(imms.second.map(|imm| Packet::Notice(imm.to_bits())));
            let further = u8::from(length > self.apart_above) + u8::from(imms.second.is_some());
            lane.push_back(Packet::Ack(transfer.id, further));
            assert!(usize::from(further) < STRIPE_REQUESTS_MAX && further <= most);
            self.room.handle_posted(stripe.lane, further);
            let queued = &mut self.queued[usize::from(stripe.lane.0)];
            *queued += 1 + u32::from(further);
            let most = self.sending.len() as u32 + 1 + u32::from(self.further_most);
            assert!(*queued <= most, "the send queue of {:?} overflows", stripe.lane);
        }
        self.sending.push((transfer.id, message));
        self.to_send.entry(tag).or_default().pop_front();
        self.insisting = self.insisting.map(|_| None);
        Ok(())
    }

    /// The message to be sent next: the first one of any of `tags`, or the one that the sender insists on.
    fn choose(&mut self, mut tags: Vec<u32>) -> usize {
        tags.sort_unstable();
        if let Some(message) = self.insisting.flatten() {
            return message;
        }
        let firsts: Vec<_> = tags.iter().map(|tag| self.to_send[tag][0]).collect();
        let oldest = firsts.iter().copied().min().unwrap_or_default();
        // Who insists must not look further ahead than the window of slots.
        let near = |message: &usize| self.insisting.is_none() || *message < oldest + MAX_GROUP;
        let choice: Vec<_> = firsts.into_iter().filter(near).collect();
        let message = choice[self.dice.roll(choice.len() as u64) as usize];
        self.insisting = self.insisting.map(|_| Some(message));
        message
    }

    fn deliver_packet(&mut self) -> Result<(), Violation> {
        let number = self.dice.roll(self.lanes.len() as u64) as usize;
        let rail = self.striping.rail_of(Lane(number as u8));
        if self.cut == Some(number) || self.dice.roll(16) >= self.speeds[usize::from(rail)] {
            return Ok(());
        }
        match self.lanes[number].pop_front() {
            None => Ok(()),
            Some(Packet::Data { addr, rkey: key, message, offset, length }) => {
                assert!(length == 0 || key == rkey((addr >> 32) as usize - 1, rail.into()), "a key of another rail");
                self.write(addr, message, offset, length);
                Ok(())
            }
            Some(Packet::Notice(bits)) => self.receiver.handle_immediate(Lane(number as u8), Imm::from_bits(bits)),
            Some(Packet::Ack(id, further)) => {
                self.acks[number].push_back((id, further));
                Ok(())
            }
        }
    }

    fn write(&mut self, addr: u64, message: usize, offset: u32, length: u32) {
        if length == 0 {
            return;
        }
        let buffer = (addr >> 32) as usize - 1;
        let at = addr as u32;
        assert!(!self.contents[buffer].complete, "a write into buffer {buffer}, which has completed");
        assert!(at + length <= self.messages[buffer].posted, "a write past the end of buffer {buffer}");
        assert_eq!(at, offset, "bytes in another place than they came from");
        self.contents[buffer].pieces.push((at, length, message));
    }

    fn deliver_ack(&mut self) -> Result<(), Violation> {
        let number = self.dice.roll(self.acks.len() as u64) as usize;
        let Some((id, further)) = self.acks[number].pop_front() else { return Ok(()) };
        let lane = Lane(number as u8);
        self.queued[number] -= 1 + u32::from(further);
        self.room.handle_completion(lane, further);
        if self.striping.rails() == 1 {
            return self.sender.handle_completion(id);
        }
        if self.dice.one_in(2) {
            self.sender.handle_poll();
        }
        self.sender.handle_completion_on(id, lane)
    }

    fn test_sends(&mut self) -> Result<(), Violation> {
        let mut i = 0;
        while i < self.sending.len() {
            let (id, message) = self.sending[i];
            match self.sender.poll_done(id)? {
                None => i += 1,
                Some(length) => {
                    let Message { length: sent, posted, .. } = self.messages[message];
                    assert_eq!(length, sent.min(posted), "the sender reports another length");
                    self.sending.swap_remove(i);
                }
            }
        }
        Ok(())
    }

    /// As NCCL does: only the oldest.
    fn test_receive(&mut self) -> Result<(), Violation> {
        let Some((id, first)) = self.receiving.front().copied() else { return Ok(()) };
        match self.receiver.poll_done(id)?.map(<[u32]>::to_vec) {
            None => self.receiver.handle_fruitless_poll(id),
            Some(received) => {
                self.receiving.pop_front();
                for (i, length) in received.into_iter().enumerate() {
                    self.check(first + i, length);
                }
            }
        }
        self.announce();
        Ok(())
    }

    fn check(&mut self, buffer: usize, length: u32) {
        let Message { length: sent, posted, .. } = self.messages[buffer];
        assert_eq!(length, sent.min(posted), "buffer {buffer} reports another length");
        let contents = &mut self.contents[buffer];
        contents.complete = true;
        contents.pieces.sort_unstable();
        let mut end = 0;
        for (at, piece, message) in &contents.pieces {
            assert_eq!((*at, *message), (end, buffer), "buffer {buffer} has a hole, or bytes of another message");
            end += piece;
        }
        assert_eq!(end, length, "buffer {buffer} is incomplete");
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    let cut_at = world.dice.one_in(4).then(|| world.dice.roll(3000));
    for step in 0u64.. {
        if world.finished() {
            return;
        }
        if cut_at == Some(step) {
            world.cut = Some(world.dice.roll(u64::from(world.striping.lanes())) as usize);
        }
        world.step().unwrap_or_else(|violation| panic!("step {step}: {violation}"));
        if step > 2_000_000 {
            // With a lane cut, requests that need it hang for ever: the device's retries would end that, not the flows.
            assert!(world.cut.is_some(), "stuck: {} receives, {} sends", world.receiving.len(), world.sending.len());
            return;
        }
        if world.cut.is_some() && step > cut_at.unwrap_or(0) + 20_000 {
            return;
        }
    }
}

#[test]
fn every_schedule_delivers_every_message_once() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let (first, count) = match number("FERRITE_SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("FERRITE_SIM_SEEDS").unwrap_or(2000)),
    };
    for seed in first..first + count {
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "replay with FERRITE_SIM_SEED={seed}");
    }
}
