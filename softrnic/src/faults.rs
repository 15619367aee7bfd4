//! Fault injection: carries out the fault rules in force, from outside of the engine.
//!
//! Whether a rule applies to a message is a pure function of the seed, the connection (its two
//! ports and its number among those between them), the number of the message on it and the number
//! of the transmission: the same seed gives the same faults, whatever the timing.

use std::io::Write;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::control::{DeviceName, Network, PortName, TakenGid};
use crate::engine::{Fault, FaultHook};
use crate::host::now_ns;
use crate::network::header::mix;
use crate::network::topology::PortId;
use crate::objects::qp::Qp;
use crate::objects::send_queue::SendQueue;
use crate::process::fabric::{Fabric, Task};
use crate::remote::responder;
use crate::remote::responder::ResponderFault;
use crate::rules::{Action, ActionKind, Connection, GidReturn, KnownRules, action_of, applied};
use crate::shm::slots::RuleSlot;

/// Injects faults by the rules in the fabric.
#[derive(Debug)]
pub(crate) struct Injector {
    fabric: &'static Fabric,
    /// A state of the rules in which none is for polls or posts; 0: none is known.
    without_calls: AtomicU32,
}

impl Injector {
    pub(crate) fn new(fabric: &'static Fabric) -> Self {
        Self { fabric, without_calls: AtomicU32::new(0) }
    }

    /// Whether no rule is for polls or posts.
    #[inline]
    fn leaves_calls_alone(&self) -> bool {
        let epoch = self.fabric.header().rules_epoch.load(Acquire);
        epoch == self.without_calls.load(Relaxed) || !self.has_polls_or_posts(epoch)
    }

    #[cold]
    fn has_polls_or_posts(&self, epoch: u32) -> bool {
        let has_some = has_polls_or_posts(self.fabric);
        if !has_some {
            self.without_calls.store(epoch, Relaxed);
        }
        has_some
    }

    #[cold]
    fn find_fault(&self, qp: &Qp, queue: &mut SendQueue, epoch: u32) -> Option<Fault> {
        if qp.is_ud() {
            // Those known are of another datagram, which may go elsewhere.
            queue.rules = KnownRules::default();
            queue.lead_to(queue.executed);
        }
        let peer = queue.link.peer;
        let flow = qp.slot.flow.load(Relaxed);
        let connection =
            Connection { from: qp.port(), to: PortId::of_name(peer), flow, path: queue.link.path };
        queue.rules.refresh(self.fabric, epoch, connection);
        let (request, sges, inline) = queue.request(queue.executed);
        let bytes = inline.len() as u64 + sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>();
        let sent = Transmission {
            path: u64::from(flow) << 32 | (qp.name() >> 32) << 16 | peer >> 32,
            number: queue.number(),
            attempt: queue.head.attempts(),
            opcode: request.opcode,
            packet: bytes.min(queue.link.mtu_bytes.into()),
        };
        let seed = self.fabric.header().seed.load(Relaxed);
        let is_over = |kind: ActionKind| kind == ActionKind::Delay && queue.head.is_delayed;
        let (rule, id, action) = *queue.rules.iter().find(|(rule, id, action)| {
            !is_over(action.kind) && match_rule(rule, *id, seed, &sent)
        })?;
        qp.slot.sent.faults.store(qp.slot.sent.faults.load(Relaxed) + 1, Relaxed);
        write(self.fabric, &connection, &sent, action);
        let path = queue.link.path.filter(|_| rule.path.load(Relaxed) != 0);
        apply((qp, path), action, salt(id, seed, &sent))
    }
}

impl FaultHook for Injector {
    #[inline]
    fn on_transmission(&self, qp: &Qp, queue: &mut SendQueue) -> Option<Fault> {
        let epoch = self.fabric.header().rules_epoch.load(Acquire);
        // 0: there have never been any rules.
        if epoch == 0 || queue.rules.is_free(epoch) {
            None
        } else {
            self.find_fault(qp, queue, epoch)
        }
    }

    fn on_modify_qp(&self, from: PortId, to: PortId) -> Result<(), i32> {
        modify_qp(self.fabric, from, to)
    }

    fn on_reg_mr(&self, device: usize) -> Result<(), i32> {
        reg_mr(self.fabric, device)
    }

    fn on_poll_cq(&self, device: usize) -> Result<(), i32> {
        if self.leaves_calls_alone() { Ok(()) } else { poll_cq(self.fabric, device) }
    }

    fn on_post_send(&self, device: usize) -> Result<(), i32> {
        if self.leaves_calls_alone() { Ok(()) } else { post_send(self.fabric, device) }
    }
}

/// A message that is transmitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transmission {
    /// Ports and number of the connection in one word.
    pub(crate) path: u64,
    /// Number of the message on its connection, from 1.
    pub(crate) number: u64,
    /// Number of the transmission, from 0.
    pub(crate) attempt: u32,
    /// `ibv_wr_opcode`.
    pub(crate) opcode: u32,
    /// Bytes of its largest packet.
    pub(crate) packet: u64,
}

/// Whether rule `id` applies to the transmission. If so, it is counted.
pub(crate) fn match_rule(rule: &RuleSlot, id: u32, seed: u64, sent: &Transmission) -> bool {
    rule.id.load(Relaxed) == id
        && rule.opcodes.load(Relaxed) & 1 << sent.opcode.min(31) != 0
        && is_large_enough(rule, sent.packet)
        && sent.attempt < rule.attempts.load(Relaxed)
        && is_chosen(rule, sent.number)
        && is_drawn(rule, id, seed, sent)
        && is_in_time(rule)
        && count_hit(rule)
}

/// A random number for what a rule does to the message.
pub(crate) fn salt(id: u32, seed: u64, sent: &Transmission) -> u64 {
    random(seed, &[sent.path, sent.number, u64::from(id), 1])
}

/// Whether the rule is for messages whose largest packet has so many bytes.
fn is_large_enough(rule: &RuleSlot, packet: u64) -> bool {
    let larger = u64::from(rule.larger.load(Relaxed));
    larger == 0 || packet > larger
}

/// Whether `number` is among the rule's messages.
fn is_chosen(rule: &RuleSlot, number: u64) -> bool {
    let first = rule.first.load(Relaxed);
    let every = rule.every.load(Relaxed).max(1);
    (first..=rule.last.load(Relaxed)).contains(&number) && (number - first).is_multiple_of(every)
}

fn is_drawn(rule: &RuleSlot, id: u32, seed: u64, sent: &Transmission) -> bool {
    let chance = rule.chance.load(Relaxed);
    if chance == u64::MAX {
        return true;
    }
    random(seed, &[sent.path, sent.number, u64::from(id), u64::from(sent.attempt) << 1]) >> 32
        < chance
}

/// Whether the rule has not ended yet. Its time begins when this is first asked.
pub(crate) fn is_in_time(rule: &RuleSlot) -> bool {
    let lasts = rule.lasts.load(Relaxed);
    if lasts == 0 {
        return true;
    }
    let now = now_ns();
    let end = rule.ends_at.compare_exchange(0, now + lasts, Relaxed, Relaxed);
    end.map_or_else(|end| now < end, |_| true)
}

/// Whether the time of the rule is over.
pub(crate) fn is_over(rule: &RuleSlot) -> bool {
    let end = rule.ends_at.load(Relaxed);
    end != 0 && now_ns() >= end
}

/// Counts a hit; false if the rule has had all of its own.
fn count_hit(rule: &RuleSlot) -> bool {
    let before = rule.hits.fetch_add(1, Relaxed);
    let times = rule.times.load(Relaxed);
    times == 0 || before < u64::from(times)
}

/// A number that depends on nothing but its arguments, and on every bit of them.
fn random(seed: u64, words: &[u64]) -> u64 {
    words.iter().fold(mix(seed), |state, word| mix(state ^ mix(*word)))
}

/// What is left to be done.
#[derive(Debug)]
struct Outage {
    fabric: &'static Fabric,
    port: PortName,
    gids: GidReturn,
    taken: Vec<TakenGid>,
    is_over: bool,
}

/// Takes a port down for `lasts` nanoseconds; 0: for good. By `gids` it loses its addresses
/// meanwhile.
pub(crate) fn begin(fabric: &'static Fabric, port: PortId, lasts: u64, gids: GidReturn) {
    set_port_state(fabric, port, false);
    let port = PortName { device: port.device, port: port.port };
    let taken = if gids.is_untouched() { Vec::new() } else { Network::of(fabric).take_gids(port) };
    if lasts != 0 {
        fabric
            .arm(now_ns() + lasts, Box::new(Outage { fabric, port, gids, taken, is_over: false }));
    }
}

/// A queue pair uses the port, so it exists. Of a device that has failed meanwhile it stays down.
pub(crate) fn set_port_state(
    fabric: &'static Fabric,
    PortId { device, port }: PortId,
    is_active: bool,
) {
    let _ = Network::of(fabric).set_port_state(PortName { device, port }, is_active);
}

/// Has a device fail as `action` says, which is one that does that.
pub(crate) fn fail_device(fabric: &'static Fabric, device: usize, action: Action) {
    if action.refuses == 0 {
        return fail_device_now(fabric, device, action.value);
    }
    if Network::of(fabric).refuse_commands(DeviceName(device)).is_ok() {
        fabric.arm(
            now_ns() + action.refuses,
            Box::new(DeviceFailure { fabric, device, lasts: action.value }),
        );
    }
}

/// Has a device fail for `lasts` nanoseconds; 0: for good.
fn fail_device_now(fabric: &'static Fabric, device: usize, lasts: u64) {
    let name = DeviceName(device);
    if lasts == 0 {
        return drop(Network::of(fabric).fail_device(name));
    }
    let at = now_ns() + lasts;
    if Network::of(fabric).fail_device_until(name, at).is_ok() {
        fabric.arm(at, Box::new(DeviceReturn { fabric, device }));
    }
}

/// A device that has refused commands fails.
#[derive(Debug)]
struct DeviceFailure {
    fabric: &'static Fabric,
    device: usize,
    lasts: u64,
}

impl Task for DeviceFailure {
    fn run(self: Box<Self>) {
        fail_device_now(self.fabric, self.device, self.lasts);
    }
}

/// A device that has failed is back.
#[derive(Debug)]
struct DeviceReturn {
    fabric: &'static Fabric,
    device: usize,
}

impl Task for DeviceReturn {
    fn run(self: Box<Self>) {
        // Looking at it is enough.
        let _ = Network::of(self.fabric).is_absent(self.device);
    }
}

impl Outage {
    fn return_gids(&self) {
        Network::of(self.fabric).return_gids(self.port, &self.taken, self.gids.change);
    }
}

impl Task for Outage {
    fn run(mut self: Box<Self>) {
        let (fabric, PortName { device, port }) = (self.fabric, self.port);
        if self.is_over {
            return self.return_gids();
        }
        if self.gids.after == 0 {
            self.return_gids();
        }
        set_port_state(fabric, PortId { device, port }, true);
        if self.gids.after != 0 {
            self.is_over = true;
            fabric.arm(now_ns() + self.gids.after, self);
        }
    }
}

/// Does what concerns more than the message; returns what concerns it. `path`: the one that the
/// rule is for, if it is for one; `salt`: a random number of its own.
pub(crate) fn apply((qp, path): (&Qp, Option<u32>), action: Action, salt: u64) -> Option<Fault> {
    let (fabric, port) = (qp.fabric, qp.port());
    match action.kind {
        ActionKind::Drop => return Some(Fault::Drop),
        ActionKind::DropAck => return Some(Fault::DropAck),
        ActionKind::Delay => return Some(Fault::Delay(action.value)),
        ActionKind::Late => return Some(Fault::Late(action.value)),
        ActionKind::QpError => return Some(Fault::QpError),
        ActionKind::Rnr => return Some(Fault::Responder(ResponderFault::NotReady)),
        ActionKind::Corrupt => return Some(Fault::Responder(ResponderFault::Corrupt(salt))),
        ActionKind::AccessError => return Some(Fault::Responder(ResponderFault::AccessError)),
        ActionKind::Cut => return Some(Fault::Responder(ResponderFault::Cut(action.value))),
        ActionKind::Forget => return Some(Fault::Responder(ResponderFault::Forget)),
        ActionKind::OperationError => {
            return Some(Fault::Responder(ResponderFault::OperationError));
        }
        ActionKind::CqOverrun => responder::overrun(fabric, qp.send_cq.slot),
        ActionKind::PortDown => begin(fabric, port, action.value, action.gids),
        ActionKind::PortUp => set_port_state(fabric, port, true),
        ActionKind::Slow => {
            let port = fabric.port(port.device, port.port);
            let path = path.and_then(|path| port.paths.get(path as usize));
            path.map_or(&port.bytes_per_ms, |path| &path.bytes_per_ms).store(action.value, Relaxed);
        }
        ActionKind::DeviceFatal => fail_device(fabric, port.device, action),
        // SAFETY: ends this process, as asked.
        ActionKind::Kill => unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
        },
        ActionKind::ModifyQp | ActionKind::RegMr | ActionKind::PollCq | ActionKind::PostSend => {}
    }
    None
}

/// What `ibv_modify_qp` to RTR from one port to another has to answer.
pub(crate) fn modify_qp(fabric: &Fabric, from: PortId, to: PortId) -> Result<(), i32> {
    ask(fabric, |rule, action| match action.kind {
        ActionKind::ModifyQp => {
            let is_ours =
                is_at([&rule.device, &rule.port], from) && is_at([&rule.peer, &rule.peer_port], to);
            is_ours.then_some(action.value as i32)
        }
        _ => None,
    })
}

/// What a registration at a device has to answer.
pub(crate) fn reg_mr(fabric: &Fabric, device: usize) -> Result<(), i32> {
    ask(fabric, |rule, action| match action.kind {
        ActionKind::RegMr if is(&rule.device, device as u32 + 1) => Some(action.value as i32),
        _ => None,
    })
}

/// Whether there is a rule for polls or posts.
pub(crate) fn has_polls_or_posts(fabric: &Fabric) -> bool {
    let mut rules = fabric.rules().iter().filter(|rule| rule.id.load(Acquire) != 0);
    let is_one = |action: Action| matches!(action.kind, ActionKind::PollCq | ActionKind::PostSend);
    rules.any(|rule| action_of(rule).is_some_and(is_one))
}

/// What a poll of a completion queue of a device has to answer.
pub(crate) fn poll_cq(fabric: &Fabric, device: usize) -> Result<(), i32> {
    ask(fabric, |rule, action| match action.kind {
        ActionKind::PollCq if is(&rule.device, device as u32 + 1) => Some(action.value as i32),
        _ => None,
    })
}

/// What posting a work request to a send queue of a device has to answer.
pub(crate) fn post_send(fabric: &Fabric, device: usize) -> Result<(), i32> {
    ask(fabric, |rule, action| match action.kind {
        ActionKind::PostSend if is(&rule.device, device as u32 + 1) => Some(action.value as i32),
        _ => None,
    })
}

fn is(field: &AtomicU32, value: u32) -> bool {
    let field = field.load(Relaxed);
    field == 0 || field == value
}

fn is_at([device, port]: [&AtomicU32; 2], end: PortId) -> bool {
    is(device, end.device as u32 + 1) && is(port, end.port)
}

/// The errno of the first rule that `code_of` finds concerned and that applies to this call.
fn ask(fabric: &Fabric, code_of: impl Fn(&RuleSlot, Action) -> Option<i32>) -> Result<(), i32> {
    if fabric.header().rules_epoch.load(Acquire) == 0 {
        return Ok(());
    }
    let mut rules: Vec<_> =
        fabric.rules().iter().filter(|rule| rule.id.load(Acquire) != 0).collect();
    rules.sort_unstable_by_key(|rule| rule.id.load(Acquire));
    for rule in rules {
        let Some(code) = action_of(rule).and_then(|action| code_of(rule, action)) else { continue };
        if is_over(rule) {
            continue;
        }
        let before = rule.hits.fetch_add(1, Relaxed);
        if applied(rule, before + 1) > applied(rule, before) && is_in_time(rule) {
            return Err(code);
        }
    }
    Ok(())
}

// A record of the faults that were injected, one line each, appended to the file that
// `SOFTRNIC_TRACE` names. Lines of one connection come in its order; sorted, the traces of two runs
// with the same seed and the same messages are equal.

/// Writes down that `action` was applied to a transmission.
pub(crate) fn write(fabric: &Fabric, connection: &Connection, sent: &Transmission, action: Action) {
    let Some(path) = &fabric.settings.trace else { return };
    let Connection { from, to, flow, .. } = connection;
    let line = format!(
        "softrnic{}/{} > softrnic{}/{} flow {flow} message {} transmission {}: {action}\n",
        from.device,
        from.port,
        to.device,
        to.port,
        sent.number,
        sent.attempt + 1
    );
    // One write per line: what several processes append does not mix.
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}
