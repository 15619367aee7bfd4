//! The arguments of `ferrite top`, and its loop.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use lab::cli::exit::Exit;
use lab::error::{Error, Result};
use lab::system::output;

use crate::top::openmetrics::{Server, Totals};
use crate::top::rates::{Filter, PortRates, Sort, rows};
use crate::top::stats_file::Processes;
use crate::top::table::{Key, Ports, Screen, View};
use crate::top::{openmetrics, rates, table};

#[derive(Debug, Args)]
#[command(after_help = "\
Reads the statistics files of all processes of this machine that use the plugin (docs/stats-file.md), and changes nothing. \
In a terminal: [s] next sort order, [space] pause, [q] quit. Otherwise it prints a table each interval. docs/slow.md explains \
the columns.\n\n\
Exit code 0: shown; 2: the folder cannot be read; 3: with --once, no process was found; 130: interrupted.")]
pub(super) struct Top {
    /// Seconds between two readings
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = parse_interval)]
    interval: f64,
    /// Read twice, print one table, and end
    #[arg(long)]
    once: bool,
    /// Order of the connections
    #[arg(long, value_enum, default_value = "p99")]
    sort: Sort,
    /// Show only connections that match every key: `rank=6,peer=118,dev=mlx5_3,host=n-0412,pid=815`
    #[arg(long, value_name = "LIST", default_value = "", value_parser = Filter::parse)]
    filter: Filter,
    /// Print a JSON object each interval
    #[arg(long, conflicts_with_all = ["prometheus", "listen"])]
    json: bool,
    /// Write metrics to this file each interval, for a textfile collector of Prometheus
    #[arg(long, value_name = "FILE")]
    prometheus: Option<PathBuf>,
    /// Serve metrics over HTTP: at PORT of the loopback address, or at ADDRESS:PORT
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    listen: Option<SocketAddr>,
    /// Folder of the statistics files
    #[arg(long, value_name = "FOLDER", env = "FERRITE_STATS_DIR", default_value = "/dev/shm")]
    folder: PathBuf,
}

pub(super) fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "0.1 to 3600 seconds are possible".into())
}

/// An address, or a port on the loopback address.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let local = || {
        text.trim_start_matches(':')
            .parse()
            .ok()
            .map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port)))
    };
    text.parse()
        .ok()
        .or_else(local)
        .ok_or_else(|| "an address such as 127.0.0.1:9100, or a port, is expected".into())
}

/// What was seen at a moment.
struct Moment {
    processes: Processes,
    ports: Ports,
}

impl Moment {
    fn look(folder: &Path) -> Result<Self> {
        let processes =
            Processes::read(folder).map_err(|e| Error::io(folder.display().to_string(), e))?;
        Ok(Self { processes, ports: rates::read(Path::new(rates::CLASS)) })
    }

    fn port_rates(&self, before: Option<&Self>) -> BTreeMap<(String, u32), PortRates> {
        let Some(before) = before else { return BTreeMap::new() };
        let seconds =
            self.processes.at.saturating_duration_since(before.processes.at).as_secs_f64();
        let rates =
            |(key, port)| Some(((key), rates::rates(before.ports.get(key)?, port, seconds)));
        self.ports
            .iter()
            .filter_map(rates)
            .map(|(key, rates): (&(String, u32), _)| (key.clone(), rates))
            .collect()
    }
}

impl Top {
    pub(super) fn run(mut self) -> Result<Exit> {
        let server = self.listen.map(Server::new).transpose()?;
        if let Some(address) = server.as_ref().and_then(Server::address) {
            output::write_stderr(format_args!("ferrite top: metrics at http://{address}/metrics"));
        }
        let is_exporter = self.prometheus.is_some() || server.is_some();
        let in_terminal =
            !(self.once || self.json || is_exporter) && std::io::stdout().is_terminal();
        let screen = in_terminal.then(Screen::new).transpose()?;
        let mut totals = Totals::default();
        let mut before = None;
        loop {
            let now = Moment::look(&self.folder)?;
            let is_last = self.once && before.is_some();
            totals.add(&now.processes);
            if let Some(path) = &self.prometheus {
                write_whole(path, &totals.text(&now.processes, &now.ports))?;
            }
            if !is_exporter && (!self.once || is_last) {
                let text = self.text(before.as_ref(), &now, screen.as_ref());
                match &screen {
                    Some(screen) => screen.show(&text)?,
                    None => output::write_stdout(&text)?,
                }
            }
            if is_last || self.once && is_exporter && server.is_none() {
                return Ok(if now.processes.living.is_empty() { Exit::TooFew } else { Exit::Good });
            }
            if self.wait(screen.as_ref(), server.as_ref(), &totals, &now)? {
                return Ok(if in_terminal { Exit::Good } else { Exit::Interrupted });
            }
            before = Some(now);
        }
    }

    fn text(&self, before: Option<&Moment>, now: &Moment, screen: Option<&Screen>) -> String {
        let mut rows = rows(before.map(|before| &before.processes), &now.processes);
        rows.retain(|row| self.filter.admits(row));
        self.sort.apply(&mut rows);
        let port_rates = now.port_rates(before);
        let view = View {
            now: &now.processes,
            rows: &rows,
            ports: &now.ports,
            port_rates: &port_rates,
            sort: self.sort,
            width: screen.map(Screen::columns).or_else(output::width).unwrap_or(usize::MAX),
            has_keys: screen.is_some(),
        };
        if self.json {
            openmetrics::line(&view)
        } else {
            view.text(screen.map_or(usize::MAX, Screen::lines))
        }
    }

    /// Waits for an interval, and does meanwhile what the user and clients want. Returns whether to
    /// end.
    fn wait(
        &mut self,
        screen: Option<&Screen>,
        server: Option<&Server>,
        totals: &Totals,
        now: &Moment,
    ) -> Result<bool> {
        const STEP: Duration = Duration::from_millis(50);
        let until = Instant::now() + Duration::from_secs_f64(self.interval);
        let mut is_paused = false;
        while is_paused || Instant::now() < until {
            if output::received() {
                return Ok(true);
            }
            if let Some(server) = server {
                server.poll(|| totals.text(&now.processes, &now.ports));
            }
            match screen.map(|screen| screen.key(STEP)).transpose()?.flatten() {
                Some(Key::Quit) => return Ok(true),
                Some(Key::Sort) => {
                    self.sort = self.sort.next();
                    return Ok(false);
                }
                Some(Key::Pause) => is_paused = !is_paused,
                Some(Key::Redraw) => return Ok(false),
                None if screen.is_none() => std::thread::sleep(STEP),
                None => {}
            }
        }
        Ok(false)
    }
}

/// Writes a file so that a reader finds the old text or the new one.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let written = std::fs::write(&name, text).and_then(|()| std::fs::rename(&name, path));
    written.map_err(|e| Error::io(path.display().to_string(), e))
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads the statistics files of this machine's processes twice (docs/stats-file.md). For each connection with lanes \
(FERRITE_LANES, docs/slow.md) it shows recoveries, moves of lanes to other paths, and the share and speed of each lane. `ferrite top --json` has the same numbers. If all lanes carry the same share from the start, one queue pair costs \
less.\n\n\
Exit code 0: shown; 2: the folder cannot be read; 3: no process was found.")]
pub(super) struct Paths {
    /// Seconds between the two readings
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = parse_interval)]
    interval: f64,
    /// Show only connections that match every key: `rank=6,peer=118,dev=mlx5_3,host=n-0412,pid=815`
    #[arg(long, value_name = "LIST", default_value = "", value_parser = Filter::parse)]
    filter: Filter,
    /// Folder of the statistics files
    #[arg(long, value_name = "FOLDER", env = "FERRITE_STATS_DIR", default_value = "/dev/shm")]
    folder: PathBuf,
}

impl Paths {
    pub(super) fn run(&self) -> Result<Exit> {
        let look = || {
            Processes::read(&self.folder)
                .map_err(|e| Error::io(self.folder.display().to_string(), e))
        };
        let before = look()?;
        std::thread::sleep(Duration::from_secs_f64(self.interval));
        let now = look()?;
        let mut rows = rows(Some(&before), &now);
        rows.retain(|row| self.filter.admits(row));
        Sort::Gbps.apply(&mut rows);
        output::write_stdout(&table::text(&rows))?;
        Ok(if now.living.is_empty() { Exit::TooFew } else { Exit::Good })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_on_the_loopback_address() {
        let local = SocketAddr::from(([127, 0, 0, 1], 9100));
        assert_eq!(
            [parse_address("9100"), parse_address(":9100"), parse_address("127.0.0.1:9100")],
            [Ok(local), Ok(local), Ok(local)]
        );
        assert_eq!(parse_address("0.0.0.0:80"), Ok(SocketAddr::from(([0, 0, 0, 0], 80))));
        assert!(parse_address("here").is_err());
    }
}
