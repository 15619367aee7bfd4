//! What the devices of a fabric are like. The first process decides; those that come later adopt
//! it, or are refused.

use std::sync::atomic::Ordering::SeqCst;

use crate::abi::types::{Gid, PortAttr};
use crate::drivers::table::Driver;
use crate::limits::{DEVICES, MAX_MESSAGE, PATHS, PORTS};
use crate::network::header;
use crate::network::header::{GidType, TypedGid};
use crate::shm::file::SharedFile;
use crate::shm::slots::{GIDS, GidSlot, Header, PortSlot, TOPOLOGY_WORDS};

/// What is settled for the whole fabric, in the order of [`RULES`].
#[derive(Clone, Copy, Debug)]
enum Key {
    Devices,
    Ports,
    Card,
    Link,
    Gids,
    Speed,
    Mtu,
    Paths,
    PathMbs,
    PathUs,
}

/// What may be said about one [`Key`].
struct KeyRule {
    word: &'static str,
    default: &'static str,
    allowed: &'static str,
    is_per_port: bool,
    parse: fn(&str) -> Option<u32>,
}

const KEYS: usize = 10;

const RULES: [KeyRule; KEYS] = [
    KeyRule {
        word: "devices",
        default: "2",
        allowed: "a number from 1 to 8",
        is_per_port: false,
        parse: |text| one_of(text, 1..=DEVICES as u32),
    },
    KeyRule {
        word: "ports",
        default: "1",
        allowed: "a number from 1 to 2",
        is_per_port: false,
        parse: |text| one_of(text, 1..=PORTS as u32),
    },
    KeyRule {
        word: "card",
        default: "1",
        allowed: "a number from 1 to 2 (devices on one card)",
        is_per_port: false,
        parse: |text| one_of(text, 1..=2),
    },
    KeyRule {
        word: "link",
        default: "roce",
        allowed: "roce, ib or unspecified",
        is_per_port: true,
        parse: |text| match text {
            "roce" => Some(LINK_ETHERNET),
            "ib" => Some(LINK_INFINIBAND),
            "unspecified" => Some(LINK_UNSPECIFIED),
            _ => None,
        },
    },
    KeyRule {
        word: "gids",
        default: "plain",
        allowed: "plain, rich or vlan",
        is_per_port: false,
        parse: |text| ["plain", "rich", "vlan"].iter().position(|w| *w == text).map(|i| i as u32),
    },
    KeyRule {
        word: "speed",
        default: "400",
        allowed: "5, 10, 20, 25, 40, 50, 56, 100, 200, 400 or 800 (Gb/s)",
        is_per_port: true,
        parse: |text| {
            one_of(text, 1..=800).map(|gbps| gbps * 10).filter(|&s| signalling(s).is_some())
        },
    },
    KeyRule {
        word: "mtu",
        default: "4096",
        allowed: "256, 512, 1024, 2048 or 4096",
        is_per_port: true,
        parse: |text| one_of(text, 256..=4096).and_then(mtu_code),
    },
    KeyRule {
        word: "paths",
        default: "0",
        allowed: "a number from 0 to 8 (ways from a port through the fabric; 0: all go the same way, which is not modelled)",
        is_per_port: false,
        parse: |text| one_of(text, 0..=PATHS as u32),
    },
    KeyRule {
        word: "path_mbs",
        default: "0",
        allowed: "a number from 0 to 100000 (MB/s of each path; 0: no limit)",
        is_per_port: false,
        parse: |text| one_of(text, 0..=100_000),
    },
    KeyRule {
        word: "path_us",
        default: "0",
        allowed: "a number from 0 to 1000000 (microseconds that each path takes, one way)",
        is_per_port: false,
        parse: |text| one_of(text, 0..=1_000_000),
    },
];

fn one_of(text: &str, allowed: impl Iterator<Item = u32>) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    allowed.into_iter().find(|&n| n == number)
}

impl KeyRule {
    fn variable(&self) -> String {
        format!("SOFTRNIC_{}", self.word.to_uppercase())
    }
}

/// What was said about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Value {
    text: String,
    /// For every port that could exist.
    of: [[u32; PORTS]; DEVICES],
    /// Ports that were named: device, port.
    named: Vec<(usize, u32)>,
}

impl Value {
    /// The value that `text` says. Per port: one for all, then exceptions, such as
    /// `400,softrnic1/2=100`.
    fn parse(rule: &KeyRule, text: &str) -> Option<Self> {
        let mut value =
            Self { text: text.to_owned(), of: [[0; PORTS]; DEVICES], named: Vec::new() };
        let mut parts = text.split(',').peekable();
        let all = parts.next_if(|part| !part.contains('=')).unwrap_or(rule.default);
        value.of = [[(rule.parse)(all)?; PORTS]; DEVICES];
        for exception in parts {
            let (name, own) = exception.split_once('=').filter(|_| rule.is_per_port)?;
            let (device, port) = parse_name(name)?;
            value.of[device][port as usize - 1] = (rule.parse)(own)?;
            value.named.push((device, port));
        }
        Some(value)
    }
}

/// What the environment requests of the topology; mostly nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requested([Option<Value>; KEYS]);

impl Requested {
    /// What `driver` is like counts as requested, where the environment requests nothing else. The
    /// error is a sentence that names the variable, its value and what is allowed.
    pub(crate) fn from_env(driver: &Driver) -> Result<Self, String> {
        let mut requested = Self::default();
        for (rule, said) in RULES.iter().zip(&mut requested.0) {
            let variable = rule.variable();
            let Some(text) = driver.text(&variable)? else { continue };
            let value = Value::parse(rule, &text);
            let exceptions = if rule.is_per_port {
                ", and exceptions as in \"…,softrnic1/2=…\""
            } else {
                ""
            };
            let complain = || format!("{variable}={text:?}: must be {}{exceptions}", rule.allowed);
            *said = Some(value.ok_or_else(complain)?);
        }
        Ok(requested)
    }
}

/// What the devices are like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topology([Value; KEYS]);

impl Topology {
    /// What the first process of a fabric decides: what it requests, and the defaults.
    pub(crate) fn decide(requested: &Requested) -> Result<Self, String> {
        let mut text = String::new();
        for (rule, said) in RULES.iter().zip(&requested.0) {
            let value = said.as_ref().map_or(rule.default, |v| &v.text);
            text.push_str(&format!("{}={value} ", rule.word));
        }
        let topology = Self::parse(text.trim_end())
            .ok_or("the topology of the devices cannot be written down")?;
        topology.check_names(requested)?;
        if text.len() > TOPOLOGY_WORDS * 8 {
            return Err(
                "SOFTRNIC_LINK, SOFTRNIC_SPEED and SOFTRNIC_MTU are too long together".to_owned()
            );
        }
        Ok(topology)
    }

    /// Whether a process that requests this may join; if not, a sentence.
    pub(crate) fn admit(&self, requested: &Requested, fabric: &str) -> Result<(), String> {
        self.check_names(requested)?;
        for ((rule, said), is) in RULES.iter().zip(&requested.0).zip(&self.0) {
            let Some(said) = said else { continue };
            if self.places().any(|(device, port)| said.of[device][port] != is.of[device][port]) {
                return Err(format!(
                    "{}={:?}: fabric {fabric} is in use with {:?}; unset it, or set SOFTRNIC_FABRIC to another name",
                    rule.variable(),
                    said.text,
                    is.text
                ));
            }
        }
        Ok(())
    }

    /// Exceptions for ports that do not exist are mistakes.
    fn check_names(&self, requested: &Requested) -> Result<(), String> {
        for (rule, said) in RULES.iter().zip(&requested.0) {
            let Some(said) = said else { continue };
            let is_absent =
                |&&(device, port): &&(usize, u32)| device >= self.devices() || port > self.ports();
            if let Some((device, port)) = said.named.iter().find(is_absent) {
                let (devices, ports) = (self.devices(), self.ports());
                return Err(format!(
                    "{}={:?}: there is no softrnic{device}/{port} among {devices} device(s) with {ports} port(s) each",
                    rule.variable(),
                    said.text
                ));
            }
        }
        Ok(())
    }

    /// Device and port index of every port there is.
    fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let ports = self.ports() as usize;
        (0..self.devices()).flat_map(move |device| (0..ports).map(move |port| (device, port)))
    }

    fn all(&self, key: Key) -> u32 {
        self.0[key as usize].of[0][0]
    }

    fn at(&self, key: Key, device: usize, port: u32) -> u32 {
        self.0[key as usize].of[device][port as usize - 1]
    }

    pub(crate) fn devices(&self) -> usize {
        self.all(Key::Devices) as usize
    }

    /// Ports of each device.
    pub(crate) fn ports(&self) -> u32 {
        self.all(Key::Ports)
    }

    /// Devices on one card.
    pub(crate) fn devices_on_card(&self) -> usize {
        self.all(Key::Card) as usize
    }

    pub(crate) fn has_rich_gids(&self) -> bool {
        self.all(Key::Gids) == 1
    }

    /// Each port has a VLAN interface beside its own one.
    pub(crate) fn has_vlan_gids(&self) -> bool {
        self.all(Key::Gids) == 2
    }

    pub(crate) fn link_layer(&self, device: usize, port: u32) -> u32 {
        self.at(Key::Link, device, port)
    }

    /// In units of 100 Mb/s.
    pub(crate) fn speed(&self, device: usize, port: u32) -> u32 {
        self.at(Key::Speed, device, port)
    }

    /// As `ibv_mtu`.
    pub(crate) fn mtu(&self, device: usize, port: u32) -> u32 {
        self.at(Key::Mtu, device, port)
    }

    /// Ways from a port to each other one; 0: they are not modelled.
    pub(crate) fn paths(&self) -> u32 {
        self.all(Key::Paths)
    }

    /// Bytes in a millisecond of each path, 0: no limit; and nanoseconds that it takes, one way.
    pub(crate) fn path_pace_and_latency(&self) -> (u64, u64) {
        (u64::from(self.all(Key::PathMbs)) * 1000, u64::from(self.all(Key::PathUs)) * 1000)
    }

    fn text(&self) -> String {
        let parts =
            RULES.iter().zip(&self.0).map(|(rule, value)| format!("{}={}", rule.word, value.text));
        parts.collect::<Vec<_>>().join(" ")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut values = Vec::new();
        for (rule, part) in RULES.iter().zip(text.split(' ')) {
            let (word, said) = part.split_once('=')?;
            values.push(Value::parse(rule, said).filter(|_| word == rule.word)?);
        }
        Some(Self(values.try_into().ok()?))
    }

    /// Writes it into the file.
    pub(crate) fn store(&self, header: &Header) {
        let text = self.text();
        for (word, bytes) in header.topology[1..].iter().zip(text.as_bytes().chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(whole), SeqCst);
        }
        header.topology[0].store(text.len() as u64, SeqCst);
    }

    /// What the file says; `None` if nobody has written it yet.
    pub(crate) fn load(header: &Header) -> Option<Self> {
        let length = usize::try_from(header.topology[0].load(SeqCst)).ok()?;
        let bytes: Vec<u8> =
            header.topology[1..].iter().flat_map(|word| word.load(SeqCst).to_le_bytes()).collect();
        Self::parse(std::str::from_utf8(bytes.get(..length)?).ok()?)
    }
}

const PHYS_DISABLED: u8 = 3;
const PHYS_LINK_UP: u8 = 5;
const GRH_REQUIRED: u8 = 1;
const SUBNET_TIMEOUT: u8 = 18;
/// Of the subnet manager, which is nobody.
const SM_LID: u16 = 1;
/// Sets up the ports of a new fabric.
pub(crate) fn set_up_all(file: &SharedFile, topology: &Topology) {
    for device in 0..topology.devices() {
        for port in 1..=topology.ports() {
            set_up(file.port(device, port), topology, device, port);
        }
    }
}

/// Gives `slot` what the topology says about `port` of `device`.
pub(crate) fn set_up(slot: &PortSlot, topology: &Topology, device: usize, port: u32) {
    slot.mtu.store(topology.mtu(device, port), SeqCst);
    slot.link_layer.store(topology.link_layer(device, port), SeqCst);
    slot.speed.store(topology.speed(device, port), SeqCst);
    if slot.is_infiniband() {
        slot.lid.store(u32::from(SM_LID) + 1 + (device * PORTS) as u32 + port - 1, SeqCst);
    }
    for (entry, gid) in slot.gids.iter().zip(first_gids(topology, device, port)) {
        entry.set(&gid);
    }
    let (pace, latency) = topology.path_pace_and_latency();
    for path in &slot.paths {
        path.bytes_per_ms.store(pace, SeqCst);
        path.latency_ns.store(latency, SeqCst);
    }
    slot.state.store(STATE_ACTIVE, SeqCst);
}

/// The GID table of a port at the beginning.
fn first_gids(topology: &Topology, device: usize, port: u32) -> Vec<TypedGid> {
    let guid = header::guid(device, port);
    if topology.link_layer(device, port) == LINK_INFINIBAND {
        return vec![TypedGid { gid: header::subnet_local(guid), kind: GidType::Plain }];
    }
    let (local, mapped) = (header::link_local(guid), header::mapped(device, port));
    let v2 = |gid: Gid| TypedGid { gid, kind: GidType::RoceV2 };
    if topology.has_vlan_gids() {
        // Both interfaces have one MAC address, and so the same link-local address.
        return [local, mapped, local, header::mapped_of_vlan(device, port)].map(v2).into();
    }
    if !topology.has_rich_gids() {
        return vec![v2(local), v2(mapped)];
    }
    let both = |gid: Gid| [TypedGid { gid, kind: GidType::Plain }, v2(gid)];
    [local, mapped, header::global(device, port)].into_iter().flat_map(both).collect()
}

impl GidSlot {
    /// `None`: the entry is empty.
    pub(crate) fn get(&self) -> Option<TypedGid> {
        let number = self.kind.load(SeqCst);
        let mut gid = [0; 16];
        for (bytes, word) in gid.chunks_mut(8).zip(&self.words) {
            bytes.copy_from_slice(&word.load(SeqCst).to_ne_bytes());
        }
        // It may be changing right now.
        let kind = GidType::from_slot(number).filter(|_| self.kind.load(SeqCst) == number)?;
        Some(TypedGid { gid, kind })
    }

    /// Call under the control lock.
    pub(crate) fn set(&self, entry: &TypedGid) {
        self.kind.store(0, SeqCst);
        for (word, bytes) in self.words.iter().zip(entry.gid.chunks_exact(8)) {
            word.store(bytes.try_into().map_or(0, u64::from_ne_bytes), SeqCst);
        }
        self.kind.store(entry.kind as u32, SeqCst);
    }

    /// Call under the control lock.
    pub(crate) fn clear(&self) {
        self.kind.store(0, SeqCst);
    }
}

impl PortSlot {
    pub(crate) fn is_active(&self) -> bool {
        self.state.load(SeqCst) == STATE_ACTIVE
    }

    pub(crate) fn is_infiniband(&self) -> bool {
        self.link_layer.load(SeqCst) == LINK_INFINIBAND
    }

    /// TypedGid `index` of the GID table; `None` if it is empty, or outside.
    pub(crate) fn gid(&self, index: usize) -> Option<TypedGid> {
        self.gids.get(index)?.get()
    }

    /// Whether the table has such an entry.
    pub(crate) fn answers_to(&self, entry: &TypedGid) -> bool {
        self.gids.iter().any(|slot| slot.get().as_ref() == Some(entry))
    }

    /// Whether the table has this GID, for whatever kind of packets.
    pub(crate) fn has_gid(&self, gid: &Gid) -> bool {
        self.gids.iter().filter_map(GidSlot::get).any(|entry| entry.gid == *gid)
    }

    /// What `ibv_query_port` says.
    pub(crate) fn attributes(&self) -> PortAttr {
        let (state, is_ib) = (self.state.load(SeqCst), self.is_infiniband());
        let (width, speed) = signalling(self.speed.load(SeqCst)).unwrap_or_default();
        PortAttr {
            state,
            max_mtu: MTU_4096,
            active_mtu: self.mtu.load(SeqCst),
            gid_tbl_len: GIDS as i32,
            max_msg_sz: MAX_MESSAGE,
            qkey_viol_cntr: self.qkey_violations.load(SeqCst),
            pkey_tbl_len: 1,
            lid: self.lid.load(SeqCst) as u16,
            sm_lid: if is_ib { SM_LID } else { 0 },
            max_vl_num: 1,
            subnet_timeout: if is_ib { SUBNET_TIMEOUT } else { 0 },
            active_width: width,
            // What does not fit is the fastest that does.
            active_speed: speed.min(SPEED_NDR) as u8,
            phys_state: if state == STATE_ACTIVE { PHYS_LINK_UP } else { PHYS_DISABLED },
            link_layer: self.link_layer.load(SeqCst) as u8,
            flags: if is_ib { 0 } else { GRH_REQUIRED },
            active_speed_ex: speed,
            ..PortAttr::default()
        }
    }
}

/// A port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PortId {
    pub(crate) device: usize,
    pub(crate) port: u32,
}

impl PortId {
    /// The name of queue pair `qpn` at this port, see `QpSlot::peer`.
    pub(crate) fn qp_name(self, qpn: u32) -> u64 {
        u64::from(self.port) << 40 | (self.device as u64) << 32 | u64::from(qpn)
    }

    /// The port in the name of a queue pair.
    pub(crate) fn of_name(name: u64) -> Self {
        Self { device: (name >> 32) as usize & 0xff, port: (name >> 40) as u32 & 0xff }
    }
}

/// Device index and port that a name means: `softrnic1/2`, `rnic1/2` or `1/2`.
pub(crate) fn parse_name(name: &str) -> Option<(usize, u32)> {
    let (device, port) = name.split_once('/')?;
    let port = port.parse().ok().filter(|p| (1..=PORTS as u32).contains(p))?;
    Some((parse_device(device)?, port))
}

/// Device index that a name means: `softrnic1`, `rnic1` or `1`.
pub(crate) fn parse_device(name: &str) -> Option<usize> {
    let digits =
        ["softrnic", "rnic"].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    digits.parse().ok().filter(|&d| d < DEVICES)
}

pub(crate) const STATE_DOWN: u32 = 1;
pub(crate) const STATE_ACTIVE: u32 = 4;
/// What devices say that are neither: `IBV_LINK_LAYER_UNSPECIFIED`. Here they are addressed like
/// Ethernet.
pub(crate) const LINK_UNSPECIFIED: u32 = 0;
pub(crate) const LINK_INFINIBAND: u32 = 1;
pub(crate) const LINK_ETHERNET: u32 = 2;
/// 4096 bytes, as `ibv_mtu`.
pub(crate) const MTU_4096: u32 = 5;

/// The highest code of the 8-bit attribute: 100 Gb/s a lane.
pub(crate) const SPEED_NDR: u32 = 128;

/// Speed (100 Mb/s), `active_width`, `active_speed`.
const SIGNALLING: [(u32, u8, u32); 11] = [
    (50, 1, 2),
    (100, 2, 1),
    (200, 2, 2),
    (250, 1, 32),
    (400, 2, 4),
    (500, 1, 64),
    (560, 2, 16),
    (1000, 2, 32),
    (2000, 2, 64),
    (4000, 2, SPEED_NDR),
    (8000, 2, 256),
];

/// Width and speed codes of a speed in units of 100 Mb/s.
pub(crate) fn signalling(speed: u32) -> Option<(u8, u32)> {
    SIGNALLING.iter().find(|s| s.0 == speed).map(|&(_, width, code)| (width, code))
}

/// `ibv_mtu` of a size in bytes.
pub(crate) fn mtu_code(bytes: u32) -> Option<u32> {
    (1..=MTU_4096).find(|&code| mtu_bytes(code) == bytes)
}

pub(crate) fn mtu_bytes(code: u32) -> u32 {
    128 << code
}
