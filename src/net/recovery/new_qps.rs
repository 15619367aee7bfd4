//! The queue pairs of an attempt: created, connected, and tested for whether they reach the peer.

use super::end::End;
use crate::error::{Error, Result};
use crate::host::config::Retries;
use crate::host::gid;
use crate::net::device::card_port::CardPort;
use crate::net::device::nic::Nic;
use crate::net::peer::state::PeerState;
use crate::net::qp::connect::ConnectingQpSet;
use crate::net::qp::init_rail::{KeptQueue, RailPort};
use crate::net::qp::priority::Priority;
use crate::net::qp::reach::{ReachTest, SilentQps};
use crate::net::qp::set::{InitQpSet, QpSet};
use crate::proto::QpIndex;
use crate::proto::endpoint::Endpoint;
use crate::proto::handshake::Negotiated;
use crate::proto::lanes::FlowLabels;
use crate::proto::rail_weights::RailWeights;
use crate::proto::recovery::machine::Role;
use crate::proto::recovery::path_mtu::{self, PathMtus, Ports};
use crate::proto::recovery::rail_mask::RailMask;
use crate::proto::recovery::reach::{PathTimes, Reach};
use crate::proto::stripe::Striping;
use crate::verbs::clock;
use crate::verbs::status::Status;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After this many failures between the same ports, a rail of which only some queue pairs reach the
/// peer is left out if another rail is complete. Until then its queue pairs are created anew, which
/// may give them other paths.
const MOST_UNREACHED: u32 = 4;
/// How often to check the test of whether the peer is reached.
const REACH_EVERY: Duration = Duration::from_micros(100);

/// The number of a rail, its port, and the GID of the peer's port.
type RailAndPeerGid = (u8, Arc<CardPort>, [u8; 16]);

/// The new queue pairs of one end of a connection, if any.
#[derive(Debug)]
pub struct NewQps {
    nic: Arc<Nic>,
    peer: Arc<PeerState>,
    role: Role,
    /// Queue pairs on each rail, unless a device has fewer. A receiver has no more than the sender.
    per_rail: usize,
    priority: Priority,
    labels: FlowLabels,
    /// The numbering of the queue pairs that were connected last.
    striping: Striping,
    /// The ports of the latest attempt at both ends, and the results of tests between them.
    between: Vec<RailAndPeerGid>,
    times: PathTimes,
    mtus: PathMtus,
    /// What the latest test that found a limit of packet sizes has found, since the connection last
    /// ran or its ports changed.
    cut: Option<String>,
    /// The completion queues of the old queue pairs, for the new ones.
    kept: Vec<KeptQueue>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    None,
    /// The sender's queue pairs, before the receiver's are known.
    Created(InitQpSet),
    Connecting(u32, Box<ConnectingQpSet>),
    /// The sender's queue pairs are connected.
    Testing(u32, Box<(ReachTest, Endpoint)>, RailWeights),
    Connected(QpSet, RailWeights),
    /// The receiver's queue pairs are connected, and the sender is ready.
    Proving(u32, Box<ReachTest>, RailWeights),
}

/// How far the queue pairs of an attempt are.
#[derive(Debug)]
pub enum NewQpsProgress {
    /// Check again at this time.
    Wait(Instant),
    /// The queue pairs of this attempt are connected, with this description for the peer. The
    /// sender's reach it.
    Connected(u32, Endpoint, Reach),
    /// The queue pairs of this attempt are connected, but some get no acknowledgement, among them
    /// all of these rails. The text gives another reason not to use them.
    Unreachable(u32, RailMask, Option<String>),
    /// The receiver's queue pairs of this attempt reach the sender.
    Proven(u32),
    /// Some of them do not, among them all of these rails. The text gives another reason not to use
    /// them.
    Unproven(u32, RailMask, Option<String>),
    /// The queue pairs of this attempt cannot be connected.
    Failed(u32, Error),
}

impl NewQps {
    /// No new queue pairs yet, for an end of a connection to `peer` on `terms` that runs on `qps`.
    /// Their packets are marked like those of `qps`.
    pub fn new(
        nic: &Arc<Nic>,
        peer: &Arc<PeerState>,
        role: Role,
        terms: &Negotiated,
        qps: &QpSet,
    ) -> Self {
        Self {
            nic: Arc::clone(nic),
            peer: Arc::clone(peer),
            role,
            per_rail: terms.qps_per_rail(),
            priority: qps.priority,
            labels: qps.labels.clone(),
            striping: qps.striping,
            between: Vec::new(),
            times: PathTimes::new(qps.round_trip),
            mtus: PathMtus::default(),
            cut: None,
            kept: Vec::new(),
            stage: Stage::None,
        }
    }

    /// Keeps these completion queues for the next attempt.
    pub fn keep_queues(&mut self, kept: Vec<KeptQueue>) {
        self.kept = kept;
    }

    /// Destroys the queues that are kept on lost devices, which they would keep open.
    pub fn leave_lost_devices(&mut self) {
        self.kept.retain(|queue| !queue.is_lost());
    }

    /// The rail number of a queue pair of those connected last.
    pub fn rail_of(&self, qp: QpIndex) -> u8 {
        self.striping.rail_of(qp)
    }

    /// Gives the lanes of these queue pairs, of those connected last, other flow labels from the
    /// next attempt on, if they have any. This changes their paths.
    pub fn leave_paths(&mut self, qps: SilentQps) {
        if self.striping.qp_count() <= self.striping.rails() {
            // Without lanes there are no flow labels: new queue pairs have other paths anyway.
            return;
        }
        for qp in (0..self.striping.qp_count()).filter(|qp| qps.0 & 1 << qp != 0) {
            self.labels.replace(self.striping.rail_of(QpIndex(qp)), qp / self.striping.rails());
        }
    }

    /// Creates the sender's queue pairs on `ports`. Returns their description for the receiver.
    ///
    /// # Errors
    /// A port is down, or a device has no more queues.
    pub fn create(&mut self, end: &dyn End, ports: &[RailPort]) -> Result<Endpoint> {
        self.discard();
        let mut qps = InitQpSet::new(&self.nic, ports, self.per_rail, end.caps(), &mut self.kept)?;
        end.describe(&mut qps)?;
        // Assumes that the peer's ports are those of the latest attempt.
        qps.limit_mtus(&self.mtus, |rail| {
            self.between.iter().find(|(number, ..)| *number == rail).map(|(.., far)| *far)
        });
        if self.nic.config.ece {
            qps.offer_ece();
        }
        let endpoint = qps.endpoint.clone();
        self.stage = Stage::Created(qps);
        Ok(endpoint)
    }

    /// Begins to connect the queue pairs of `attempt` on `ports` to those of `remote`. Creates the
    /// receiver's first.
    ///
    /// # Errors
    /// A port is down, a device has no more queues, or the two ends do not fit.
    pub fn connect(
        &mut self,
        end: &dyn End,
        attempt: u32,
        ports: &[RailPort],
        remote: Endpoint,
    ) -> Result<()> {
        let mut qps = match (self.role, std::mem::replace(&mut self.stage, Stage::None)) {
            (Role::Sender, Stage::Created(qps)) => qps,
            (Role::Sender, _) => return Err(Error::internal("no queue pairs were created")),
            (Role::Receiver, stage) => {
                self.end(stage);
                let offered = remote.rails.iter().map(|rail| rail.qps.len()).min().unwrap_or(0);
                InitQpSet::new(
                    &self.nic,
                    ports,
                    self.per_rail.min(offered),
                    end.caps(),
                    &mut self.kept,
                )?
            }
        };
        let far = |rail| {
            remote.rails.get(ports.iter().position(|on| on.number == rail)?).map(|far| far.gid)
        };
        if self.role == Role::Receiver {
            // The sender's keep the MTU of its offer, which had all known limits.
            qps.limit_mtus(&self.mtus, far);
        }
        let (sender, receiver) = match self.role {
            Role::Sender => (&qps.endpoint, &remote),
            Role::Receiver => (&remote, &qps.endpoint),
        };
        let mut terms = Negotiated::agree(sender, receiver)?;
        let between =
            ports.iter().filter_map(|on| Some((on.number, Arc::clone(&on.port), far(on.number)?)));
        self.handle_ports(between.collect());
        let rails = qps.rail_numbers();
        terms.striping = terms.striping.over(rails);
        // The recovery repeats what fails, and a failing rail must not delay the others.
        let connecting = qps.connect(
            &self.nic,
            remote,
            &terms,
            self.priority,
            self.labels.clone(),
            Retries::NONE,
        )?;
        self.stage = Stage::Connecting(attempt, Box::new(connecting));
        Ok(())
    }

    /// Continues as far as possible now. `None`: there is nothing to do.
    ///
    /// # Errors
    /// The peer has sent a frame too early. The connection cannot continue.
    pub fn advance(&mut self, end: &dyn End) -> Result<Option<NewQpsProgress>> {
        Ok(match std::mem::replace(&mut self.stage, Stage::None) {
            Stage::Connecting(attempt, connecting) => {
                Some(self.advance_connecting(end, attempt, connecting))
            }
            Stage::Testing(attempt, mut testing, weights) => Some(match testing.0.poll()? {
                None => {
                    self.stage = Stage::Testing(attempt, testing, weights);
                    NewQpsProgress::Wait(clock::now() + REACH_EVERY)
                }
                Some(SilentQps(0)) => {
                    let (test, endpoint) = *testing;
                    self.handle_reached(test, weights);
                    NewQpsProgress::Connected(attempt, endpoint, self.times.reach())
                }
                Some(silent) => {
                    let (left_out, why) = self.handle_silent(testing.0, silent);
                    NewQpsProgress::Unreachable(attempt, left_out, why)
                }
            }),
            Stage::Proving(attempt, mut test, weights) => Some(match test.poll()? {
                None => {
                    self.stage = Stage::Proving(attempt, test, weights);
                    NewQpsProgress::Wait(clock::now() + REACH_EVERY)
                }
                Some(SilentQps(0)) => {
                    self.handle_reached(*test, weights);
                    NewQpsProgress::Proven(attempt)
                }
                Some(silent) => {
                    let (left_out, why) = self.handle_silent(*test, silent);
                    NewQpsProgress::Unproven(attempt, left_out, why)
                }
            }),
            other => {
                self.stage = other;
                None
            }
        })
    }

    /// Handles that all queue pairs of `test` reach the peer.
    fn handle_reached(&mut self, test: ReachTest, weights: RailWeights) {
        self.mtus.handle_test(paths(&self.between), std::iter::empty());
        self.times.handle_round_trip(test.round_trip());
        let mut qps = test.into_qps();
        qps.round_trip = self.times.round_trip();
        self.nic.round_trips.learn(&qps.remote, qps.round_trip);
        self.stage = Stage::Connected(qps, weights);
    }

    /// Handles that the `silent` queue pairs of `test` get no acknowledgement: destroys all queue
    /// pairs. Returns the rails to leave out, and a reason if there is a more precise one.
    fn handle_silent(&mut self, test: ReachTest, silent: SilentQps) -> (RailMask, Option<String>) {
        self.times.handle_failed_test();
        self.leave_paths(silent);
        let left_out = match test.dead_rails(silent) {
            RailMask::NONE if self.times.failures() >= MOST_UNREACHED => test.flawed_rails(silent),
            dead => dead,
        };
        let lowered = self.mtus.handle_test(paths(&self.between), test.cut_rails());
        let why = self.describe_cut(&test, lowered);
        if why.is_some() {
            self.cut.clone_from(&why);
        }
        test.into_qps().destroy();
        (left_out - lowered, why)
    }

    /// For messages: that only packets of some sizes arrive. `lowered` is the mask of rails whose
    /// MTU was lowered for that.
    fn describe_cut(&self, test: &ReachTest, lowered: RailMask) -> Option<String> {
        let (rail, code) = test.cut_rails().min_by_key(|(_, code)| *code)?;
        let port = test
            .qps()
            .rails
            .iter()
            .find(|on| on.number == rail)
            .map_or("", |on| on.port.name.as_str());
        let (arriving, lost) = (path_mtu::bytes(code), path_mtu::bytes(code + 1));
        let text = format!(
            "packets of {lost} bytes from {port} are lost, packets of {arriving} bytes arrive: check the MTU of the switches on the path"
        );
        if !lowered.is_empty() {
            warn_of_mtu(&self.nic, &self.peer, &text, arriving);
        }
        Some(text)
    }

    /// For messages: what is known of packet sizes unless `reason` says it, the ports of the latest
    /// attempt, and what to check where they do not reach each other.
    pub fn describe_paths(&self, reason: &str) -> String {
        let cut = self.cut.as_ref().filter(|cut| !reason.contains(*cut));
        let cut = cut.map_or_else(String::new, |cut| format!("; {cut}"));
        let mut troubles = Vec::new();
        let mut path = |(_, port, far): &RailAndPeerGid| {
            let own = match port.address_towards(&[*far]) {
                Ok(own) => {
                    troubles.extend(port.trouble_towards(&own, far));
                    format!("GID {}", gid::address(&own.gid.gid))
                }
                Err(_) => "no address".into(),
            };
            format!("{} ({own}) to GID {}", port.name, gid::address(far))
        };
        let paths: Vec<_> = self.between.iter().map(&mut path).collect();
        format!("{cut}{}", likely(troubles.first().map(String::as_str), &paths))
    }

    /// Records that the queue pairs are on these ports and connected to these GIDs. Paths between
    /// other ports keep their record.
    fn handle_ports(&mut self, between: Vec<RailAndPeerGid>) {
        let is_same = |((_, port, gid), (_, now, gid_now)): (&RailAndPeerGid, &RailAndPeerGid)| {
            Arc::ptr_eq(port, now) && gid == gid_now
        };
        if between.len() != self.between.len() || !self.between.iter().zip(&between).all(is_same) {
            self.times.forget_failures();
            self.cut = None;
        }
        self.between = between;
    }

    /// Begins to test whether the receiver's queue pairs reach the sender. The sender is ready, its
    /// test has found what `told` reports, and the missing list is due. A test from the sender does
    /// not prove the way back: acknowledgements may pass where requests do not.
    ///
    /// # Errors
    /// There are none, or the device refuses.
    pub fn prove(&mut self, attempt: u32, told: Reach) -> Result<()> {
        let (qps, weights) = self.take_connected()?;
        let test = ReachTest::begin(qps, self.times.limit_reported(told))?;
        self.stage = Stage::Proving(attempt, Box::new(test), weights);
        Ok(())
    }

    fn advance_connecting(
        &mut self,
        end: &dyn End,
        attempt: u32,
        mut connecting: Box<ConnectingQpSet>,
    ) -> NewQpsProgress {
        match connecting.advance(&self.nic) {
            Ok(false) => {
                let next = connecting.next_attempt();
                self.stage = Stage::Connecting(attempt, connecting);
                NewQpsProgress::Wait(next)
            }
            Ok(true) => self
                .prepare(end, attempt, *connecting)
                .unwrap_or_else(|e| NewQpsProgress::Failed(attempt, e)),
            Err(e) => NewQpsProgress::Failed(attempt, e),
        }
    }

    /// Handles that the queue pairs are connected: prepares the receiver's for messages, or tests
    /// the sender's.
    fn prepare(
        &mut self,
        end: &dyn End,
        attempt: u32,
        connecting: ConnectingQpSet,
    ) -> Result<NewQpsProgress> {
        let (mut qps, endpoint) = connecting.finish();
        // From now on a completion queue of these may fail.
        qps.watch(&self.peer);
        self.striping = qps.striping;
        let weights = endpoint.rail_weights_with(&qps.remote).over(qps.striping.rail_numbers());
        match self.role {
            Role::Sender => {
                let test = ReachTest::begin(qps, self.times.limit())?;
                self.stage = Stage::Testing(attempt, Box::new((test, endpoint)), weights);
                Ok(NewQpsProgress::Wait(clock::now()))
            }
            Role::Receiver => {
                end.prepare(&mut qps)?;
                self.stage = Stage::Connected(qps, weights);
                Ok(NewQpsProgress::Connected(attempt, endpoint, Reach::default()))
            }
        }
    }

    /// Takes the connected queue pairs for use, with the initial weights of their rails.
    ///
    /// # Errors
    /// There are none.
    pub fn take(&mut self) -> Result<(QpSet, RailWeights)> {
        let taken = self.take_connected()?;
        self.times.forget_failures();
        self.cut = None;
        self.kept.clear();
        Ok(taken)
    }

    fn take_connected(&mut self) -> Result<(QpSet, RailWeights)> {
        match std::mem::replace(&mut self.stage, Stage::None) {
            Stage::Connected(qps, weights) => Ok((qps, weights)),
            _ => Err(Error::internal("no queue pairs were connected")),
        }
    }

    /// Destroys the new queue pairs, and what is kept for further ones: there will be none.
    pub fn give_up(&mut self) {
        self.discard();
        self.kept.clear();
    }

    /// Destroys the new queue pairs.
    pub fn discard(&mut self) {
        self.discard_of(false);
    }

    /// Destroys the new queue pairs. If the peer's next frame `was_late`, that says nothing of the
    /// paths: a busy peer reports what its own test finds.
    pub fn discard_of(&mut self, was_late: bool) {
        match std::mem::replace(&mut self.stage, Stage::None) {
            Stage::Connected(qps, _) if was_late && self.role == Role::Sender => qps.destroy(),
            stage => self.end(stage),
        }
    }

    /// Destroys queue pairs of this `stage` that are not used. If the receiver's are connected, the
    /// sender has not become ready. Its writes may have reached this end while acknowledgements,
    /// which take the paths of these, were lost. If they are the sender's, the receiver's may not
    /// have reached it.
    fn end(&mut self, stage: Stage) {
        match (self.role, &stage) {
            (Role::Receiver, Stage::Connected(..)) => self.leave_paths(SilentQps(u32::MAX)),
            (Role::Sender, Stage::Connected(..)) => self.times.handle_failed_test(),
            _ => {}
        }
        match stage {
            Stage::Testing(_, testing, _) => testing.0.into_qps().destroy(),
            Stage::Connected(qps, _) => qps.destroy(),
            Stage::Proving(_, test, _) => test.into_qps().destroy(),
            Stage::None | Stage::Created(_) | Stage::Connecting(..) => {}
        }
    }
}

/// The paths between these ports, by rail number.
fn paths(between: &[RailAndPeerGid]) -> impl Iterator<Item = (u8, Ports)> {
    between.iter().map(|(number, port, far)| (*number, Ports { own: port.name.clone(), far: *far }))
}

/// For messages: why `paths` lose everything; one of them has a `trouble`. There are none before an
/// attempt connects. The first part is what a log shows of a long line.
pub(super) fn likely(trouble: Option<&str>, paths: &[String]) -> String {
    let trouble = trouble.map(|trouble| format!("{trouble}, or ")).unwrap_or_default();
    let cause = Status::RETRY_EXCEEDED.cause();
    let from =
        if paths.is_empty() { String::new() } else { format!(". From {}", paths.join(", from ")) };
    format!(". Likely: {trouble}{cause}{from}")
}

/// Packets larger than this many bytes are lost because of `cause`; the connection now uses smaller
/// ones.
fn warn_of_mtu(nic: &Nic, peer: &PeerState, cause: &str, bytes: u32) {
    let text = format!(
        "{}: {cause}; the connection to {} now uses packets of up to {bytes} bytes",
        nic.name,
        peer.peer()
    );
    match nic.notices.line("mtu", &text) {
        Some(line) => log::warn!("{line}"),
        None => log::debug!("{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_paths_that_were_tried_if_there_are_any() {
        let path = "mlx5_0:1 (GID fd00::1) to GID fd01::1".to_owned();
        assert!(likely(None, std::slice::from_ref(&path)).ends_with(&format!(". From {path}")));
        assert!(likely(None, &[]).ends_with(Status::RETRY_EXCEEDED.cause()));
    }
}
