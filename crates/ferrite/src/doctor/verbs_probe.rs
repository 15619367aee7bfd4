//! Finds the [`VerbsFacts`], in a process of its own: a driver's library may crash or wait for ever. It uses the plugin's own
//! code, so that the facts are what the plugin would see.

use std::sync::Arc;

use nccl_net::inspect::caps;
use nccl_net::inspect::completion_queue::CompletionQueue;
use nccl_net::inspect::config::Config;
use nccl_net::inspect::context::Context;
use nccl_net::inspect::gdr::Gdr;
use nccl_net::inspect::library::Library;
use nccl_net::inspect::memory::{MemoryRegion, ProtectionDomain, Source};
use nccl_net::inspect::port::LinkLayer;
use nccl_net::inspect::queue_pair::{RemoteAccess, ResetQueuePair};
use nccl_net::inspect::rail::{Rail, partition_index};

use crate::doctor::verbs_facts::{DeviceFacts, GidFacts, LibraryFacts, PortFacts, RailFacts, VerbsFacts};
use lab::error::Result;
use lab::system::maps::Maps;
use lab::system::output;
use lab::transport::buffer::Buffer;

/// Bytes of the trial registration, where the machine has so much memory to spare.
const TRIAL_BYTES: u64 = 256 << 20;
/// Completions of the trial completion queue.
const TRIAL_COMPLETIONS: u32 = 512;

/// What the hidden subcommand does: prints the facts as one line of JSON, or the reason why there is no libibverbs.
pub(crate) fn main() -> i32 {
    let text = serde_json::to_string(&facts()).unwrap_or_default();
    i32::from(output::write_stdout(&format!("{text}\n")).is_err())
}

fn facts() -> std::result::Result<VerbsFacts, String> {
    // A setting that is out of range has a row of its own; the others are looked at with the defaults.
    let config = Config::from_env().or_else(|_| Config::parse(|_| None)).map_err(words)?;
    let config = Arc::new(config);
    let library = Arc::new(Library::load(config.verbs_library.as_deref()).map_err(words)?);
    let mut facts = VerbsFacts {
        library: library_facts(&library),
        traffic_class: config.traffic_class.unwrap_or(0),
        ..VerbsFacts::default()
    };
    match Context::open_all(&library) {
        Ok((contexts, failures)) => {
            facts.unopened = failures.into_iter().map(|failure| words(failure.error)).collect();
            facts.devices = contexts.iter().map(|context| device(context, &config)).collect();
            let rails = Rail::discover(&contexts, &config, &Gdr::detect(), &mut Vec::new());
            facts.rails = rails.iter().map(|rail| rail_facts(rail)).collect();
        }
        Err(error) => facts.no_list = Some(words(error)),
    }
    Ok(facts)
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn library_facts(library: &Library) -> LibraryFacts {
    let path = library.path().unwrap_or_default();
    let mapped = Maps::read().map(|maps| maps.files_named("libibverbs.so")).unwrap_or_default();
    let own = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
    let owned = |(name, version): (&str, &str)| (name.to_owned(), version.to_owned());
    LibraryFacts {
        path: path.display().to_string(),
        others: mapped.iter().filter(|other| **other != own).map(|other| other.display().to_string()).collect(),
        missing: library.missing().into_iter().map(owned).collect(),
    }
}

fn device(context: &Arc<Context>, config: &Config) -> DeviceFacts {
    let mut facts = DeviceFacts { name: context.name().to_owned(), ..DeviceFacts::default() };
    let Ok(attributes) = context.attributes() else { return facts };
    facts.firmware = attributes.firmware.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
    facts.max_queue_pairs = attributes.max_queue_pairs.into();
    facts.max_memory_regions = attributes.max_memory_regions.into();
    let domain = ProtectionDomain::new(context);
    facts.takes_dmabuf = domain.as_ref().is_ok_and(|domain| domain.supports_dmabuf());
    facts.ports =
        (1..=attributes.port_count).map(|number| port(context, domain.as_ref().ok(), number, config)).collect();
    facts.registration = Some(domain.as_ref().map_err(|e| words(e.clone())).and_then(register));
    facts.queue_pair = Some(domain.map_err(words).and_then(|domain| queue_pair(context, &domain).map(|pair| pair.1)));
    facts
}

fn port(context: &Arc<Context>, domain: Option<&Arc<ProtectionDomain>>, number: u8, config: &Config) -> PortFacts {
    let attributes = match context.port(number) {
        Ok(attributes) => attributes,
        Err(error) => return PortFacts { port: number, error: Some(words(error)), ..PortFacts::default() },
    };
    let bytes = |code: u8| if (1..=5).contains(&code) { 128 << code } else { 0 };
    // The step to INIT is the first at which a device looks at the index.
    let pkey = domain.map(|domain| {
        let (pair, _) = queue_pair(context, domain)?;
        let index = partition_index(context, number, config).map_err(words)?;
        pair.initialize(number, index, RemoteAccess::Write).map(|_| index).map_err(words)
    });
    PortFacts {
        port: number,
        error: None,
        active: attributes.active,
        link_layer: match attributes.link_layer {
            LinkLayer::InfiniBand => "InfiniBand".into(),
            LinkLayer::Ethernet => "Ethernet".into(),
            LinkLayer::Other(number) => number.to_string(),
        },
        lid: attributes.lid,
        sm_lid: attributes.sm_lid,
        mtu: bytes(attributes.mtu),
        max_mtu: bytes(attributes.max_mtu),
        pkey_count: attributes.pkey_count,
        pkey,
    }
}

/// Registers as much host memory as a job might at once, and deregisters it.
fn register(domain: &Arc<ProtectionDomain>) -> std::result::Result<u64, String> {
    let bytes = TRIAL_BYTES.min(free_memory() / 4).max(1 << 20);
    let memory: Result<Buffer> = Buffer::unused(bytes as usize);
    let memory = memory.map_err(|problem| problem.to_string())?;
    let address = memory.address(0, memory.len()).map_err(|problem| problem.to_string())? as u64;
    // SAFETY: the region is dropped in this statement, the memory after it.
    unsafe { MemoryRegion::register(domain, address, memory.len(), Source::Address, true) }.map_err(words)?;
    Ok(memory.len() as u64)
}

/// Bytes that the kernel could give.
fn free_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(u64::MAX, |kib| kib * 1024)
}

/// A queue pair as a receiver has it, with the inline data that was granted.
fn queue_pair(
    context: &Arc<Context>,
    domain: &Arc<ProtectionDomain>,
) -> std::result::Result<(ResetQueuePair, u32), String> {
    let queue = CompletionQueue::new(context, TRIAL_COMPLETIONS).map_err(words)?;
    let pair = ResetQueuePair::new(domain, None, &queue, caps::RECEIVER_QP_CAPS).map_err(words)?;
    let granted = pair.inline_bytes();
    Ok((pair, granted))
}

fn rail_facts(rail: &Rail) -> RailFacts {
    let range = rail.config.gid_range.filter(|_| rail.config.gid_index.is_none() && !rail.infiniband);
    let gid = rail.local_address().map_err(words).map(|address| {
        let gid = address.gid;
        GidFacts {
            index: gid.index,
            address: gid.address().to_string(),
            roce_version: gid.roce_version,
            link_local: gid.is_link_local(),
            is_outside_range: range.is_some_and(|range| !range.contains(gid.address())),
        }
    });
    RailFacts {
        device: rail.card.name.clone(),
        port: rail.port,
        speed_mbps: rail.speed_mbps,
        infiniband: rail.infiniband,
        description: rail.describe().trim_start_matches(&rail.name).trim_start().to_owned(),
        gid: Some(gid),
    }
}
