//! The arguments of `ferrite cost`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use nccl_net::inspect::version;

use crate::cli::exit::Exit;
use crate::cli::source_args;
use crate::cli::source_args::{Stock, parse_size, parse_stock};
use crate::cost;
use crate::cost::{Case, CostRequest};
use crate::error::{Error, Result};
use crate::nccl::library;
use crate::nccl::library::Source;
use crate::system::dist::Dist;
use crate::system::output;
use crate::verbs::{Verbs, control_of};

#[derive(Debug, Args)]
#[command(after_help = "\
Counts on the software device, with one process that sends to itself: no time is measured, and each run gives the same numbers. \
Each combination of --size, --depth, --queue-pairs and --rails is a table with a column for each transport. What the rows mean: \
lab/docs/cost.md.

Examples:
  ferrite cost                                       the plugin and the built-in transport of NCCL 2.21.5
  ferrite cost --stock 2.21.5,2.30.7 --depth 1,8     with two releases, one message in flight and eight
  ferrite cost --plugin OLD.so --plugin NEW.so       two builds of the plugin
  ferrite cost --queue-pairs 1,4 --rails 1,2 --json  for a program to read

Exit code 0: counted, and the data is right; 1: it is wrong; 2: it could not be tried; 130: interrupted.")]
pub(super) struct Cost {
    /// A plugin's shared object; may be repeated [default: ../lib/libnccl-net.so beside this
    /// program]
    #[arg(long, value_name = "PATH")]
    plugin: Vec<PathBuf>,
    /// Built-in transports, which come first: releases of NCCL out of the cache (fetched if need
    /// be), or files [default, without --plugin: as --nccl of `compare`]
    #[arg(long, value_name = "VERSION|LIBNCCL", value_delimiter = ',', value_parser = parse_stock)]
    stock: Vec<Stock>,
    /// Sizes of messages
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8,64K", value_parser = parse_size)]
    size: Vec<usize>,
    /// Messages in flight
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=32))]
    depth: Vec<u16>,
    /// Queue pairs of a connection on each rail; with more than one, messages are split over them
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u8).range(1..=8))]
    queue_pairs: Vec<u8>,
    /// Ports of one card that are one device: 1 or 2
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u8).range(1..=2))]
    rails: Vec<u8>,
    /// One JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Folder of the software device's libibverbs.so.1 [default: ../softrnic beside this program]
    #[arg(long, value_name = "DIR")]
    softrnic: Option<PathBuf>,
    /// A process without output for this time counts as hung; s
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

impl Cost {
    pub(super) fn run(self) -> Result<Exit> {
        let folder = self
            .softrnic
            .as_ref()
            .map_or_else(|| Dist::find().map(|dist| dist.softrnic()), |path| Ok(path.clone()))?;
        Verbs::softrnic(&folder)?.clean_stale();
        let folder = std::fs::canonicalize(&folder).unwrap_or(folder);
        let request = CostRequest {
            program: std::env::current_exe().map_err(|e| Error::io("no own program", e))?,
            control: control_of(&folder)?,
            folder,
            cases: self.cases(),
            silence: Duration::from_secs(self.timeout),
            sources: self.sources()?,
        };
        let reports = request.run(&mut |what| log::debug!("{what}"))?;
        let text = match self.json {
            true => cost::json(&reports)?,
            false => format!("{}by ferrite {}\n", cost::text(&reports), version::text()),
        };
        output::write_stdout(&text).map(|()| Exit::Good)
    }

    /// Each combination.
    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for rails in &self.rails {
            for queue_pairs in &self.queue_pairs {
                for &bytes in &self.size {
                    cases.extend(self.depth.iter().map(|depth| Case {
                        bytes,
                        depth: (*depth).into(),
                        queue_pairs: (*queue_pairs).into(),
                        rails: (*rails).into(),
                    }));
                }
            }
        }
        cases
    }

    fn sources(&self) -> Result<Vec<Source>> {
        let mut sources = Vec::new();
        for stock in &self.stock {
            sources.push(Source::stock(match stock {
                Stock::Release(release) => source_args::of_release(*release)?,
                Stock::File(path) => source_args::find(Some(path))?,
            }));
        }
        if self.stock.is_empty() && self.plugin.is_empty() {
            sources.push(Source::stock(source_args::find(None)?));
        }
        let plugins = if self.plugin.is_empty() {
            vec![Dist::find()?.plugin()?]
        } else {
            self.plugin.clone()
        };
        for path in plugins {
            library::require_plugin(&path, None)?;
            let path = std::fs::canonicalize(&path)
                .map_err(|e| Error::io(format!("cannot open {}", path.display()), e))?;
            sources.push(Source::plugin(path));
        }
        Ok(sources)
    }
}
