//! Time: the connections of a job go on side by side over one fabric, in small steps, and their lanes share its links.

use nccl_net::inspect::proto::{CardMoves, FlowLabels, MoveBudget, Time, Violation};

use crate::ecmp::connection::{Connection, DEPTH, Limits};
use crate::ecmp::fabric::Fabric;
use crate::ecmp::fair::{Fair, Path};
use crate::ecmp::hash::{Fields, Random, port_of_label, port_of_queue_pairs};
use crate::ecmp::job::Stream;
use crate::ecmp::policy::Policy;
use crate::ecmp::queues::Queues;
use crate::error::{Error, Result};

/// How fast a NIC is: 400 Gbit/s, in bytes in a microsecond.
pub(super) const NIC_RATE: f64 = 50_000.0;

/// How long a job runs, and with which messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// Bytes of each message.
    pub(super) bytes: u32,
    /// What is not measured, since shares are learnt and lanes move; us.
    pub(super) warm_up: f64,
    /// What is measured after that; us.
    pub(super) measured: f64,
    /// Rates are computed anew so often, if it has changed which lanes have something to send; us.
    pub(super) step: f64,
    /// How much faster time passes for the plugin's budget of moves than for all else.
    pub(super) budget_speed: u32,
}

/// What a job has done while it was measured.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measured {
    /// By group, the bytes of its slowest connection, as a share of what a NIC can send.
    pub(super) groups: Vec<f64>,
    /// Work requests with data for each message.
    pub(super) work_requests: f64,
    /// Lanes that have got another path, for each connection: in the warm-up, and while it was measured.
    pub(super) moves: [f64; 2],
}

/// A job over a fabric.
#[derive(Debug)]
pub(super) struct Run<'a> {
    fabric: &'a Fabric,
    streams: &'a [Stream],
    policy: Policy,
    /// Switches hash the destination queue pair's number too.
    hashes_queue_pairs: bool,
    connections: Vec<Connection>,
    /// By connection, when its lanes may move.
    budgets: Vec<MoveBudget>,
    /// By NIC, the moves of all of its connections: a process has one NIC here.
    cards: Vec<CardMoves>,
    /// By connection, the flow labels of its lanes, if they have any.
    labels: Vec<FlowLabels>,
    /// By NIC, the number of the latest queue pair.
    queue_pairs: Vec<u32>,
    /// By connection, the one that forwards what it delivers.
    forwarded_by: Vec<Option<usize>>,
    /// By lane of all connections, one connection after the other; then traffic of others.
    paths: Vec<Path>,
    /// By lane, the share of what is sent that arrives in time.
    goodput: Vec<f64>,
    fair: Fair,
    /// The lanes, by number, that the present rates are for.
    active: Vec<u32>,
    /// Where rates are not fair at once.
    queues: Option<Queues>,
}

impl<'a> Run<'a> {
    /// `others` are the paths of traffic that does not belong to the job.
    ///
    /// # Errors
    /// Two NICs have no path left.
    pub(super) fn new(
        fabric: &'a Fabric,
        streams: &'a [Stream],
        policy: Policy,
        hashes_queue_pairs: bool,
        others: &[Path],
        mut random: Random,
    ) -> Result<Self> {
        let connections: Vec<_> = streams.iter().map(|_| Connection::new(policy)).collect();
        let mut forwarded_by = vec![None; streams.len()];
        for (number, stream) in streams.iter().enumerate() {
            if let Some(before) = stream.forwards {
                forwarded_by[before] = Some(number);
            }
        }
        let queue_pairs = (0..fabric.shape().nics).map(|_| random.below(1 << 20) as u32 + 64).collect();
        let labels = |_| if policy.moves() { FlowLabels::random(random.next()) } else { FlowLabels::NONE };
        let labels = streams.iter().map(labels).collect();
        let mut run = Self {
            fabric,
            streams,
            policy,
            hashes_queue_pairs,
            budgets: streams.iter().map(|_| MoveBudget::default()).collect(),
            cards: (0..fabric.shape().nics).map(|_| CardMoves::default()).collect(),
            labels,
            queue_pairs,
            connections,
            forwarded_by,
            paths: Vec::new(),
            goodput: Vec::new(),
            fair: Fair::default(),
            active: Vec::new(),
            queues: None,
        };
        for number in 0..streams.len() {
            for lane in 0..run.connections[number].lane_count() {
                let path = run.path_of_new_queue_pair(number, lane)?;
                run.goodput.push(fabric.goodput(&path));
                run.paths.push(path);
            }
        }
        run.paths.extend_from_slice(others);
        Ok(run)
    }

    /// The same with queues in switches.
    pub(super) fn with_queues(self, queues: Option<Queues>) -> Self {
        Self { queues, ..self }
    }

    /// The path of a new queue pair of a connection: by the lane's flow label, or by the numbers of both queue pairs.
    fn path_of_new_queue_pair(&mut self, number: usize, lane: usize) -> Result<Path> {
        let Stream { from, to, .. } = self.streams[number];
        let [local, remote] = [from, to].map(|nic| {
            self.queue_pairs[nic] += 1;
            self.queue_pairs[nic]
        });
        let port = match self.labels[number].of(0, lane as u8) {
            0 => port_of_queue_pairs(local, remote),
            label => port_of_label(label),
        };
        let queue_pair = if self.hashes_queue_pairs { remote } else { 0 };
        let fields = Fields { source: from as u32, destination: to as u32, port, queue_pair };
        let path = self.fabric.path(from, to, fields);
        path.ok_or_else(|| Error::Usage(format!("no path is left from NIC {from} to NIC {to}")))
    }

    /// Runs the job.
    ///
    /// # Errors
    /// The plugin's code refuses something, which is an error of the model or of the plugin.
    pub(super) fn measure(mut self, span: Span) -> Result<Measured> {
        let mut moves = [0; 2];
        let (mut now, mut before) = (0.0, Vec::new());
        while now < span.warm_up + span.measured {
            let is_measured = now >= span.warm_up;
            if is_measured && before.is_empty() {
                before = self.connections.iter().map(|c| (c.delivered, c.begun, c.work_requests)).collect();
            }
            match self.queues.take() {
                None => self.share_links(),
                Some(queues) => self.queues = Some(self.fill_queues(queues, span.step)),
            }
            self.advance(now, now + span.step, span.bytes).map_err(|e| Error::Contract(e.to_string()))?;
            now += span.step;
            if self.policy.moves() {
                moves[usize::from(is_measured)] += self.move_lanes(budget_time(now, span.budget_speed))?;
            }
        }
        let groups = self.streams.iter().map(|stream| stream.group + 1).max().unwrap_or(0);
        let mut slowest = vec![f64::INFINITY; groups];
        let mut members = vec![0u32; groups];
        let (mut begun, mut work_requests) = (0, 0);
        for ((stream, connection), before) in self.streams.iter().zip(&self.connections).zip(&before) {
            let bytes = (connection.delivered - before.0) as f64 * f64::from(span.bytes);
            slowest[stream.group] = slowest[stream.group].min(bytes / (span.measured * NIC_RATE));
            members[stream.group] += u32::from(stream.forwards.is_none());
            begun += connection.begun - before.1;
            work_requests += connection.work_requests - before.2;
        }
        // A NIC that sends to several peers the same amount is done with the slowest.
        let groups = slowest.iter().zip(&members).map(|(slowest, members)| slowest * f64::from((*members).max(1)));
        let per_connection = |count: u64| count as f64 / self.streams.len() as f64;
        Ok(Measured {
            groups: groups.collect(),
            work_requests: work_requests as f64 / begun.max(1) as f64,
            moves: moves.map(per_connection),
        })
    }

    fn advance(&mut self, now: f64, end: f64, bytes: u32) -> Result<(), Violation> {
        for number in 0..self.connections.len() {
            let own = &self.connections[number];
            let most = own.completed + DEPTH;
            let begun = match self.streams[number].forwards {
                Some(before) => most.min(self.connections[before].delivered + DEPTH),
                None => most,
            };
            let posted = DEPTH
                + match self.forwarded_by[number] {
                    Some(next) => self.connections[next].completed.min(own.delivered),
                    None => own.delivered,
                };
            self.connections[number].advance(now, end, Limits { begun, posted, bytes })?;
        }
        Ok(())
    }

    /// Gives each lane that has something to send its rate.
    fn share_links(&mut self) {
        let mut active = Vec::with_capacity(self.active.len());
        let mut number = 0;
        for connection in &self.connections {
            for lane in 0..connection.lane_count() {
                if connection.is_busy(lane) {
                    active.push(number);
                }
                number += 1;
            }
        }
        if active == self.active {
            return;
        }
        let own = number as usize;
        let paths: Vec<Path> =
            active.iter().map(|lane| self.paths[*lane as usize]).chain(self.paths[own..].iter().copied()).collect();
        let rates = self.fair.rates(&self.fabric.capacities, &paths);
        let mut rates = active.iter().zip(rates).peekable();
        let mut number = 0;
        for connection in &mut self.connections {
            for lane in 0..connection.lane_count() {
                let rate = rates.next_if(|(active, _)| **active == number).map_or(0.0, |(_, rate)| rate);
                connection.set_rate(lane, rate * self.goodput[number as usize] * NIC_RATE);
                number += 1;
            }
        }
        self.active = active;
    }

    /// Gives each lane the rate at which its bytes arrive in this step.
    fn fill_queues(&mut self, mut queues: Queues, step: f64) -> Queues {
        let lanes = self.connections.iter().flat_map(|c| (0..c.lane_count()).map(|lane| c.bytes_left(lane)));
        let mut left: Vec<f64> = lanes.zip(&self.goodput).map(|(bytes, goodput)| bytes / goodput).collect();
        // Other jobs always have something to send.
        left.resize(self.paths.len(), f64::MAX);
        queues.advance(&self.fabric.capacities, &self.paths, &left, step);
        let mut number = 0;
        for connection in &mut self.connections {
            for lane in 0..connection.lane_count() {
                connection.set_rate(lane, queues.arrived[number] * self.goodput[number] / step);
                number += 1;
            }
        }
        queues
    }

    /// Gives another path to the lanes that have been slow for long enough, one of a connection, if its budget allows it at time `now`.
    /// Returns how many.
    fn move_lanes(&mut self, now: Time) -> Result<u64> {
        let mut count = 0;
        let mut first = 0;
        for number in 0..self.connections.len() {
            let connection = &mut self.connections[number];
            let lanes = connection.lane_count();
            // What the plugin finds too early it forgets, and finds again later.
            let card = &mut self.cards[self.streams[number].from];
            let speed = connection.speed();
            let slow = connection
                .poll_slow_lane()
                .filter(|_| now >= card.next() && self.budgets[number].poll_move(now, speed));
            if let Some(lane) = slow {
                card.handle_move(now);
                connection.recover().map_err(Error::Contract)?;
                self.labels[number].replace(0, lane as u8);
                // All queue pairs are new. Where switches do not hash their numbers, the lanes that keep their labels keep their paths.
                for lane in 0..lanes {
                    let path = self.path_of_new_queue_pair(number, lane)?;
                    self.goodput[first + lane] = self.fabric.goodput(&path);
                    self.paths[first + lane] = path;
                }
                self.active.clear();
                self.queues.iter_mut().for_each(|queues| (first..first + lanes).for_each(|lane| queues.replace(lane)));
                count += 1;
            }
            first += lanes;
        }
        Ok(count)
    }
}

/// The time of the plugin's budget of moves at time `now` of the model; us.
fn budget_time(now: f64, speed: u32) -> Time {
    Time::from_micros((now * f64::from(speed)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ecmp::fabric::{Fault, Shape};
    use crate::ecmp::job::{Workload, streams};

    const SPAN: Span = Span { bytes: 1 << 20, warm_up: 2000.0, measured: 4000.0, step: 2.0, budget_speed: 1 };

    /// Two leaves of one NIC each, so that each message of one connection takes one of two spines.
    fn fabric(uplinks: usize) -> Fabric {
        Fabric::new(Shape { nics: 2, leaf_nics: 1, uplinks, pod_leaves: None }, 1)
    }

    fn measure(fabric: &Fabric, streams: &[Stream], policy: Policy, span: Span) -> Measured {
        let run = Run::new(fabric, streams, policy, false, &[], Random::new(9)).expect("there are paths");
        run.measure(span).expect("the protocol holds")
    }

    const ONE: Stream = Stream { from: 0, to: 1, forwards: None, group: 0 };

    /// By hand: a NIC sends at its own speed over one link, at a quarter over a link of a quarter, and at half over a link that loses
    /// half.
    #[test]
    fn a_connection_is_as_fast_as_the_narrowest_link_on_its_path() {
        let rate = |fault: Option<Fault>| {
            let mut fabric = fabric(1);
            fault.into_iter().for_each(|fault| fabric.break_link(0, 0, fault));
            measure(&fabric, &[ONE], Policy::Turns(1), SPAN).groups[0]
        };
        for (fault, due) in [(None, 1.0), (Some(Fault::Slow(0.25)), 0.25), (Some(Fault::Lossy(0.5)), 0.5)] {
            assert!((rate(fault) - due).abs() < 0.02, "{fault:?}: {}", rate(fault));
        }
    }

    /// By hand: two connections of different NICs whose only uplink is the same have half of it each.
    #[test]
    fn two_connections_over_one_link_have_half_of_it_each() {
        let fabric = Fabric::new(Shape { nics: 4, leaf_nics: 2, uplinks: 1, pod_leaves: None }, 1);
        let streams =
            [ONE, Stream { from: 1, to: 3, forwards: None, group: 1 }].map(|s| Stream { to: s.to.max(2), ..s });
        let measured = measure(&fabric, &streams, Policy::Turns(1), SPAN);
        assert!(measured.groups.iter().all(|rate| (rate - 0.5).abs() < 0.02), "{measured:?}");
    }

    /// By hand: a ring of four NICs on leaves of their own, one of whose links has a third: all of it goes at a third.
    #[test]
    fn a_ring_is_as_fast_as_its_slowest_connection() {
        let mut fabric = Fabric::new(Shape { nics: 4, leaf_nics: 1, uplinks: 1, pod_leaves: None }, 1);
        fabric.break_link(2, 0, Fault::Slow(1.0 / 3.0));
        let streams = streams(Workload::Ring, 4, 1, &mut Random::new(3));
        let span = Span { warm_up: 5000.0, ..SPAN };
        let measured = measure(&fabric, &streams, Policy::Turns(1), span);
        assert!((measured.groups[0] - 1.0 / 3.0).abs() < 0.02, "{measured:?}");
    }

    /// Two uplinks, one of a quarter of the speed: a lane that is there gets another path, until all are on the good one.
    #[test]
    fn lanes_move_off_a_slow_link_and_stay_where_it_is_fast() {
        let mut fabric = fabric(2);
        fabric.break_link(0, 0, Fault::Slow(0.25));
        let span = Span { warm_up: 200_000.0, measured: 20_000.0, step: 10.0, budget_speed: 1000, ..SPAN };
        let moves = measure(&fabric, &[ONE], Policy::Moves(4), span);
        assert!(moves.groups[0] > 0.9, "{moves:?}");
        assert!(moves.moves[0] > 0.0 && moves.moves[1] == 0.0, "{moves:?}");
    }

    /// Several of eight lanes are on the slow link. In a quarter of a second one of them may move, and in as many budget's minutes more.
    #[test]
    fn lanes_move_as_seldom_as_the_plugins_budget_says() {
        let mut fabric = fabric(2);
        fabric.break_link(0, 0, Fault::Slow(0.25));
        let span = Span { warm_up: 250_000.0, measured: 0.0, step: 10.0, ..SPAN };
        let moves = |budget_speed| measure(&fabric, &[ONE], Policy::Moves(8), Span { budget_speed, ..span }).moves[0];
        assert_eq!(moves(1), 1.0);
        // A second after the first, two after the next, and so on.
        assert!(moves(10) <= 2.0 && moves(1000) > 2.0, "{} {}", moves(10), moves(1000));
    }

    /// A receiver that is slow slows all lanes alike.
    #[test]
    fn a_slow_receiver_makes_no_lane_move() {
        // The link to the NIC is what a slow receiver's credits or pauses amount to.
        let mut fabric = fabric(4);
        fabric.capacities[3] = 0.25;
        let span = Span { warm_up: 200_000.0, measured: 20_000.0, step: 10.0, ..SPAN };
        let moves = measure(&fabric, &[ONE], Policy::Moves(4), span);
        assert_eq!(moves.moves, [0.0, 0.0]);
    }
}
