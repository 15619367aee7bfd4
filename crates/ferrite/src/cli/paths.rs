//! The arguments of `ferrite paths`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::top::filter::{Filter, Sort};
use crate::top::lanes;
use crate::top::processes::Processes;
use crate::top::rates::rows;
use lab::cli::exit::Exit;
use lab::error::{Error, Result};
use lab::system::output;

#[derive(Debug, Args)]
#[command(after_help = "\
Looks twice at the statistics of this machine's processes (docs/stats-file.md), and shows for each connection that sends over lanes \
(FERRITE_LANES, docs/paths.md): how often it has recovered, how often lanes were given other paths, and the share of the bytes that each lane has \
carried meanwhile, with its speed. `ferrite top --json` has the same numbers. Where the lanes of a connection have all carried as much from its beginning on, it says \
that one queue pair would cost less.\n\n\
Exit code 0: shown; 2: the folder cannot be read; 3: no process was found.")]
pub(super) struct Paths {
    /// Time between the two looks; s
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = super::top::parse_interval)]
    interval: f64,
    /// Show connections of which all of this holds: `rank=6,peer=118,dev=mlx5_3,host=n-0412,pid=815`
    #[arg(long, value_name = "LIST", default_value = "", value_parser = Filter::parse)]
    filter: Filter,
    /// Folder of the files
    #[arg(long, value_name = "FOLDER", env = "FERRITE_STATS_DIR", default_value = "/dev/shm")]
    folder: PathBuf,
}

impl Paths {
    pub(super) fn run(&self) -> Result<Exit> {
        let look = || Processes::read(&self.folder).map_err(|e| Error::io(self.folder.display().to_string(), e));
        let before = look()?;
        std::thread::sleep(Duration::from_secs_f64(self.interval));
        let now = look()?;
        let mut rows = rows(Some(&before), &now);
        rows.retain(|row| self.filter.admits(row));
        Sort::Gbps.apply(&mut rows);
        output::write_stdout(&lanes::text(&rows))?;
        Ok(if now.living.is_empty() { Exit::TooFew } else { Exit::Good })
    }
}
