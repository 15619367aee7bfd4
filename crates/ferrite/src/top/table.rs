//! Tables of text, for any width from 80 columns on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Write as _, stdout};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::{cursor, event, execute, queue, style, terminal};
use lab::error::{Error, Result};
use nccl_net::inspect::stats::layout::{header, record};

use crate::top::rates::{Port, PortRates, Row, Sort};
use crate::top::stats_file::{End, Processes};

/// Ports by device and number.
pub(crate) type Ports = BTreeMap<(String, u32), Port>;

/// All that is shown at a moment.
#[derive(Debug)]
pub(crate) struct View<'a> {
    /// The processes.
    pub(crate) now: &'a Processes,
    /// Their connections, in order.
    pub(crate) rows: &'a [Row],
    /// The ports.
    pub(crate) ports: &'a Ports,
    /// Their rates; empty at first.
    pub(crate) port_rates: &'a BTreeMap<(String, u32), PortRates>,
    /// The order of the connections.
    pub(crate) sort: Sort,
    /// Columns that there are.
    pub(crate) width: usize,
    /// Whether keys change what is shown.
    pub(crate) has_keys: bool,
}

/// The narrowest table; and the widest one, where names have all the room that they are given.
const NARROWEST: usize = 80;
const WIDEST: usize = 100;
/// Room for a peer and for a device at the narrowest.
const PEER: usize = 13;
const DEVICE: usize = 9;
const NAME: usize = 15;

/// What the columns mean, below the tables.
const LEGEND: &str = "\
tx stages: S1 gpu, S2 cts, S3 wire   rx stages: S1 announce, S2 data, S3 consume
PATH99: 99th percentile of wire or data   LINK: larger of TX, RX in % of rate
OUT: messages under way   BUSY: connections with messages under way   -, ?: n/a
";

impl View<'_> {
    /// The tables, with at most `lines` lines.
    pub(crate) fn text(&self, lines: usize) -> String {
        let mut text = self.title();
        text += &self.devices();
        let _ = writeln!(text, "\nconnections: {}", self.sort.words());
        let names = [
            "RANK", "PEER", "", "DEVICE", "PATH99", "GB/s", "MSG/s", "OUT", "S1 p50", "S2 p50",
            "S3 p50",
        ];
        text += &self.end_line(&names.map(String::from));
        let below = LEGEND.lines().count() + 1 + usize::from(self.has_keys);
        let mut room = lines.saturating_sub(text.lines().count() + below);
        for (at, row) in self.rows.iter().enumerate() {
            let line = self.line(row);
            match room.checked_sub(line.lines().count()) {
                Some(left) => room = left,
                None => {
                    let _ = writeln!(text, "… {} more", self.rows.len() - at);
                    break;
                }
            }
            text += &line;
        }
        text += LEGEND;
        if self.has_keys {
            text += "keys: [s] sort by p99, gbps, cts, wait, retries   [space] pause   [q] quit\n";
        }
        text
    }

    /// What is left for names beyond the narrowest table.
    fn spare(&self) -> usize {
        self.width.clamp(NARROWEST, WIDEST) - NARROWEST
    }

    fn end_line(&self, cells: &[String; 11]) -> String {
        let [rank, peer, way, device, path, gigabytes, messages, out, s1, s2, s3] = cells;
        // Of the room that is left the peer gets more: it has a rank and a host.
        let (peer_width, device_width) =
            (PEER + self.spare() * 3 / 5, DEVICE + self.spare() * 2 / 5);
        format!(
            "{rank:>4} {:<peer_width$} {way:<2} {:<device_width$} {path:>7} {gigabytes:>5} {messages:>5} {out:>4} {s1:>7} {s2:>7} {s3:>7}\n",
            cut(peer, peer_width),
            cut(device, device_width),
        )
    }

    fn title(&self) -> String {
        let host =
            self.now.living.values().next().map_or_else(String::new, |process| process.file.host());
        // Other processes have written it: it may be any number.
        let unlisted = self.now.living.values().map(|process| process.file.word(header::UNLISTED));
        let unlisted = unlisted.fold(0, u64::saturating_add);
        let mut text = format!(
            "ferrite top   {host}   {} process(es)   {} connection(s), {} recovering\n",
            self.now.living.len(),
            unlisted.saturating_add(self.rows.len() as u64),
            self.rows.iter().filter(|row| row.end.recovering.is_some()).count()
        );
        if unlisted > 0 {
            let _ =
                writeln!(text, "{unlisted} connection end(s) have no record: no memory was left");
        }
        if !self.now.dead.is_empty() {
            let _ = writeln!(
                text,
                "{} file(s) of dead processes, for example {}",
                self.now.dead.len(),
                self.now.dead[0].display()
            );
        }
        for (path, why) in &self.now.unreadable {
            let _ = writeln!(text, "{}: {why}", path.display());
        }
        text
    }

    fn devices(&self) -> String {
        let mut devices: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in self.rows {
            devices.entry(&row.end.device).or_default().push(row);
        }
        let head = [
            "DEVICE", "STATE", "TX GB/s", "RX GB/s", "LINK", "MSG/s", "CONN", "BUSY", "RETRY/s",
            "CNP/s", "WAIT/s",
        ];
        let mut text = self.device_line(&head.map(String::from));
        for (name, rows) in devices {
            let sum = |is_sender: bool| {
                rows.iter()
                    .filter(|row| row.end.is_sender == is_sender)
                    .map(|row| row.bytes_per_second())
                    .sum::<f64>()
            };
            let link: f64 =
                self.ports_of_all(name).map(|key| self.ports[key].bytes_per_second).sum();
            let share = match link > 0.0 {
                true => format!("{:.0}%", 100.0 * sum(true).max(sum(false)) / link),
                false => "-".into(),
            };
            let messages: f64 = rows.iter().map(|row| row.per_second(record::DONE)).sum();
            let busy = rows.iter().filter(|row| row.end.outstanding() > 0).count();
            let ports: Vec<_> = self.ports_of_all(name).collect();
            let states: Vec<_> =
                ports.iter().map(|key| self.ports[*key].state.to_lowercase()).collect();
            let state = match states.iter().find(|state| *state != "active") {
                Some(other) => other.clone(),
                None if states.is_empty() => "?".into(),
                None => "up".into(),
            };
            // Of a port without counters nothing is known.
            let counted = ports.iter().filter(|key| !self.ports[**key].counters.is_empty());
            let rates: Vec<_> = counted.filter_map(|key| self.port_rates.get(*key)).collect();
            let of = |value: fn(&PortRates) -> f64| match rates.is_empty() {
                true => "-".into(),
                false => count(rates.iter().map(|rates| value(rates)).sum()),
            };
            text += &self.device_line(&[
                name.into(),
                state,
                gigabytes(sum(true)),
                gigabytes(sum(false)),
                share,
                count(messages),
                rows.len().to_string(),
                busy.to_string(),
                of(|rates| rates.retries),
                of(|rates| rates.congestion),
                of(|rates| rates.waits),
            ]);
        }
        text
    }

    /// The ports of a device that NCCL may have made of several.
    fn ports_of_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a (String, u32)> {
        name.split('+').flat_map(|device| self.ports_of(device))
    }

    fn ports_of<'a>(&'a self, device: &'a str) -> impl Iterator<Item = &'a (String, u32)> {
        // A port of a card with several is called by card and port number.
        let (card, port) = device
            .split_once(':')
            .map_or((device, None), |(card, port)| (card, port.parse::<u32>().ok()));
        self.ports
            .keys()
            .filter(move |(name, number)| name == card && port.is_none_or(|port| port == *number))
    }

    fn device_line(&self, cells: &[String; 11]) -> String {
        let [name, state, sent, received, link, messages, ends, busy, retries, congestion, waits] =
            cells;
        let width = NAME + self.spare();
        format!(
            "{:<width$} {:<6} {sent:>7} {received:>7} {link:>4} {messages:>5} {ends:>4} {busy:>4} {retries:>7} {congestion:>5} {waits:>6}\n",
            cut(name, width),
            cut(state, 6)
        )
    }

    /// One end of a connection.
    fn line(&self, row: &Row) -> String {
        let end = &row.end;
        let number = |rank: Option<u64>| rank.map_or_else(|| "?".into(), |rank| rank.to_string());
        let stage = |stage| row.quantile(stage, 0.5).map_or_else(|| "-".into(), time);
        let mut text = self.end_line(&[
            number(row.rank),
            format!("{} {}", number(end.peer.rank), end.peer.host),
            if end.is_sender { "tx" } else { "rx" }.into(),
            end.device.clone(),
            row.path_p99().map_or_else(|| "-".into(), time),
            gigabytes(row.bytes_per_second()),
            count(row.per_second(record::DONE)),
            end.outstanding().to_string(),
            stage(0),
            stage(1),
            stage(2),
        ]);
        let notes = notes(row);
        if !notes.is_empty() {
            let _ =
                writeln!(text, "{:>6}{}", "", cut(&notes.join(", "), self.spare() + NARROWEST - 6));
        }
        text
    }
}

/// What is worth a second line.
fn notes(row: &Row) -> Vec<String> {
    let end = &row.end;
    let mut notes = Vec::new();
    if let Some((since, attempts)) = end.recovering {
        let now =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        let lasted = time(now.saturating_sub(since) as f64);
        notes.push(format!(
            "recovering for {lasted}, attempt {attempts} (ferrite hang {})",
            row.pid
        ));
    }
    if end.stall > 0 {
        let what = if end.is_refused { "no clear-to-send" } else { "no progress" };
        notes.push(format!("{what} for {}", time(end.stall as f64)) + &operation(end));
    }
    if end.counters[record::RECOVERIES] > 0 {
        notes.push(format!(
            "recovered {} time(s), {} message(s) resent",
            end.counters[record::RECOVERIES],
            end.counters[record::RESENT]
        ));
    }
    if end.counters[record::MOVES] > 0 {
        notes.push(format!("{} lane move(s)", end.counters[record::MOVES]));
    }
    if let Some((rail, share)) = row.greatest_share() {
        let name = end.rails.get(rail).map_or("?", |(name, _)| name.as_str());
        notes.push(format!("rail {name} carries {:.0} %", share * 100.0));
    }
    notes
}

/// What its messages are of, after what is said of them.
fn operation(end: &End) -> String {
    match &end.operation {
        None => String::new(),
        Some((call, name)) if name.is_empty() => format!(" in {call}"),
        Some((call, name)) => format!(" in {call} of {name}"),
    }
}

fn cut(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true => text.chars().take(width - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

fn gigabytes(bytes: f64) -> String {
    // An empty sum is -0.
    format!("{:.2}", bytes / 1e9 + 0.0)
}

/// A number in at most five characters.
pub(crate) fn count(value: f64) -> String {
    match value {
        v if v >= 9.995e8 => format!("{:.1}G", v / 1e9),
        v if v >= 9.995e5 => format!("{:.1}M", v / 1e6),
        v if v >= 9_999.5 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

/// A time given in nanoseconds, in at most seven characters.
pub(crate) fn time(ns: f64) -> String {
    match ns {
        v if v >= 9.995e9 => format!("{:.0} s", v / 1e9),
        v if v >= 9.995e8 => format!("{:.1} s", v / 1e9),
        v if v >= 9.995e5 => format!("{:.1} ms", v / 1e6),
        v if v >= 99_950.0 => format!("{:.0} us", v / 1e3),
        v => format!("{:.1} us", v / 1e3),
    }
}

/// Bytes of a connection from which on it is said of its lanes that they are alike.
const MANY_BYTES: u64 = 10_000_000_000;

/// A line for each sender that has lanes, the number of other senders, and the number of senders
/// whose lanes bring no gain.
pub(crate) fn text(rows: &[Row]) -> String {
    let senders = || rows.iter().filter(|row| row.end.is_sender);
    let mut text = format!(
        "{:>5} {:<21} {:<14} {:>8} {:>6} {:>6}  {}\n",
        "RANK", "PEER", "DEVICE", "GB/s", "RECOV", "MOVES", "LANES: SHARE % (GB/s)"
    );
    senders().filter(|row| !row.end.lanes.is_empty()).for_each(|row| text += &line(row));
    let others = senders().filter(|row| row.end.lanes.is_empty()).count();
    if others > 0 {
        let _ = writeln!(
            text,
            "{others} sender(s) have one lane (the default) or have sent nothing (FERRITE_LANES)"
        );
    }
    let alike = senders().filter(|row| are_alike(row)).count();
    if alike > 0 {
        let _ = writeln!(
            text,
            "{alike} sender(s) have had equal lanes from the start: there is one path, or the\n\
             fabric spreads packets. FERRITE_LANES=1 costs less"
        );
    }
    text
}

/// Whether the lanes of a connection have all carried as much, to a sixteenth, over many bytes, and
/// none has got another path.
fn are_alike(row: &Row) -> bool {
    let lanes = &row.end.lanes;
    let (least, most) =
        (lanes.iter().min().copied().unwrap_or(0), lanes.iter().max().copied().unwrap_or(0));
    let has_changed =
        row.end.counters[record::MOVES] > 0 || row.end.counters[record::RECOVERIES] > 0;
    sum(lanes) >= MANY_BYTES && least >= most / 16 * 15 && !has_changed
}

fn sum(lanes: &[u64]) -> u64 {
    lanes.iter().copied().fold(0, u64::saturating_add)
}

fn line(row: &Row) -> String {
    let end = &row.end;
    let number = |rank: Option<u64>| rank.map_or_else(|| "?".into(), |rank| rank.to_string());
    let mut text = format!(
        "{:>5} {:<21} {:<14} {:>8.2} {:>6} {:>6} ",
        number(row.rank),
        format!("{} {}", number(end.peer.rank), end.peer.host),
        end.device,
        row.bytes_per_second() / 1e9,
        end.counters[record::RECOVERIES],
        end.counters[record::MOVES],
    );
    let all = sum(&row.lane_bytes);
    for bytes in &row.lane_bytes {
        let share = *bytes as f64 / all.max(1) as f64;
        let rate = if row.seconds > 0.0 { *bytes as f64 / row.seconds / 1e9 } else { 0.0 };
        let _ = write!(text, " {:.0} ({rate:.2})", share * 100.0);
    }
    text + "\n"
}

/// The terminal while it shows a full screen. It is as before once this is dropped.
#[derive(Debug)]
pub(crate) struct Screen(());

/// What a user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// To end.
    Quit,
    /// Change the order.
    Sort,
    /// Stop drawing, or continue.
    Pause,
    /// The screen has another size, or is to be drawn anew.
    Redraw,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// It is none, or does not answer.
    pub(crate) fn new() -> Result<Self> {
        terminal::enable_raw_mode().map_err(failed)?;
        let screen = Self(());
        execute!(stdout(), terminal::EnterAlternateScreen, cursor::Hide).map_err(failed)?;
        Ok(screen)
    }

    /// Its lines.
    pub(crate) fn lines(&self) -> usize {
        terminal::size().map_or(24, |(_, lines)| usize::from(lines))
    }

    /// Its columns.
    pub(crate) fn columns(&self) -> usize {
        terminal::size().map_or(80, |(columns, _)| usize::from(columns))
    }

    /// Shows `text`, cut to the size of the screen.
    ///
    /// # Errors
    /// The terminal has gone.
    pub(crate) fn show(&self, text: &str) -> Result<()> {
        let (columns, lines) = terminal::size().unwrap_or((80, 24));
        let mut out = stdout().lock();
        let mut draw = || -> std::io::Result<()> {
            queue!(out, terminal::Clear(terminal::ClearType::All))?;
            for (at, line) in text.lines().take(lines.into()).enumerate() {
                let cut: String = line.chars().take(columns.into()).collect();
                queue!(out, cursor::MoveTo(0, at as u16), style::Print(cut))?;
            }
            out.flush()
        };
        draw().map_err(failed)
    }

    /// The next key within `limit`.
    ///
    /// # Errors
    /// The terminal has gone.
    pub(crate) fn key(&self, limit: Duration) -> Result<Option<Key>> {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !event::poll(left).map_err(failed)? {
                return Ok(None);
            }
            if let Some(key) = meaning(&event::read().map_err(failed)?) {
                return Ok(Some(key));
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(stdout(), terminal::LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}

fn meaning(event: &Event) -> Option<Key> {
    match event {
        Event::Resize(..) => Some(Key::Redraw),
        Event::Key(KeyEvent { kind: KeyEventKind::Release, .. }) => None,
        Event::Key(KeyEvent { code: KeyCode::Char('c'), modifiers, .. })
            if modifiers.contains(KeyModifiers::CONTROL) =>
        {
            Some(Key::Quit)
        }
        Event::Key(KeyEvent { code, .. }) => match code {
            KeyCode::Char('q') | KeyCode::Esc => Some(Key::Quit),
            KeyCode::Char('s') => Some(Key::Sort),
            KeyCode::Char(' ') => Some(Key::Pause),
            _ => None,
        },
        _ => None,
    }
}

fn failed(problem: std::io::Error) -> Error {
    Error::io("the terminal", problem)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use nccl_net::inspect::operation::{Call, Function};
    use nccl_net::inspect::stats::layout::{HEADER_WORDS, RECORD_WORDS};

    use super::*;
    use crate::top::rates::rows;
    use crate::top::stats_file::tests::{example, parsed};
    use crate::top::stats_file::{End, Process};

    pub(crate) fn processes(words: &[u64]) -> Processes {
        let file = parsed(words);
        let ends = file.records().map(|(number, words)| End::new(number, words)).collect();
        let living = BTreeMap::from([("a".into(), Process { file, ends })]);
        Processes {
            at: Instant::now(),
            living,
            dead: Vec::new(),
            unreadable: vec![("b".into(), "cut".into())],
        }
    }

    #[test]
    fn the_tables_have_as_many_columns_and_lines_as_there_is_room_for() {
        let mut words = example();
        // All 64 records are of ends that stand still.
        let first: Vec<u64> = words[HEADER_WORDS..][..RECORD_WORDS].to_vec();
        for record_words in words[HEADER_WORDS..].chunks_exact_mut(first.len()) {
            record_words.copy_from_slice(&first);
            record_words[record::STALL] = 12_000_000_000;
            record_words[record::OPERATION] =
                Call { function: Function::AllReduce, number: Some(2_398_459) }.to_bits();
            record_words[record::COMMUNICATOR_NAME] = u64::from_ne_bytes(*b"default_");
        }
        let now = processes(&words);
        let rows = rows(None, &now);
        assert_eq!(rows.len(), 64);
        let (ports, port_rates) = (Ports::new(), BTreeMap::new());
        let view = View {
            now: &now,
            rows: &rows,
            ports: &ports,
            port_rates: &port_rates,
            sort: Sort::P99,
            width: 100,
            has_keys: true,
        };
        let text = view.text(200);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let narrow = View { width: 80, ..view };
        let narrow = narrow.text(200);
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        let heads: Vec<_> = narrow
            .lines()
            .filter(|line| line.contains("PATH99") && line.contains("S3 p50"))
            .collect();
        assert!(
            heads.len() == 1 && narrow.contains("[s] sort by") && narrow.contains("WAIT/s"),
            "{narrow}"
        );
        let waits = "no progress for 12 s in AllReduce number 2398459 of default_\n";
        assert!(text.contains("118 n-0412") && text.contains(waits), "{text}");
        assert!(text.contains("b: cut"), "{text}");
        let cut = view.text(20);
        assert!(cut.contains(" more") && cut.lines().count() <= 20, "{cut}");
    }

    #[test]
    fn what_a_terminal_of_80_columns_shows() {
        let mut words = example();
        words[HEADER_WORDS + record::STALL] = 12_000_000_000;
        let now = processes(&words);
        let mut rows = rows(None, &now);
        rows[0].end.recovering = Some((0, 21));
        let port = Port { state: "ACTIVE".into(), bytes_per_second: 50e9, ..Port::default() };
        let ports = Ports::from([((rows[0].end.device.clone(), 1), port)]);
        let view = View {
            now: &now,
            rows: &rows,
            ports: &ports,
            port_rates: &BTreeMap::new(),
            sort: Sort::P99,
            width: 80,
            has_keys: true,
        };
        // Since 1970.
        let text = view.text(24);
        let (before, rest) = text.split_once("recovering for ").expect("it recovers");
        let (_, rest) = rest.split_once(", attempt").expect("it has tried");
        testkit::snapshot!("top", &format!("{before}recovering for TIME, attempt{rest}"));
    }

    #[test]
    fn nothing_is_said_of_the_retries_of_a_port_without_counters() {
        let now = processes(&example());
        let rows = rows(None, &now);
        let retries = |counters: &[&str]| {
            let counters = counters.iter().map(|name| ((*name).to_owned(), 0)).collect();
            let key = (rows[0].end.device.clone(), 1);
            let port = Port { state: "ACTIVE".into(), counters, ..Port::default() };
            let ports = Ports::from([(key.clone(), port)]);
            let port_rates = BTreeMap::from([(key, PortRates::default())]);
            let view = View {
                now: &now,
                rows: &rows,
                ports: &ports,
                port_rates: &port_rates,
                sort: Sort::P99,
                width: 100,
                has_keys: false,
            };
            let line = view.devices().lines().nth(1).expect("a device").to_owned();
            line.split_whitespace().nth_back(2).expect("a column").to_owned()
        };
        assert_eq!((retries(&[]), retries(&["local_ack_timeout_err"])), ("-".into(), "0".into()));
    }

    /// The sender of the example, which sends 25 GB/s over a port with this rate.
    fn share_of(rate: &str) -> String {
        let folder = testkit::Scratch::new();
        let now = processes(&example());
        let mut rows = rows(None, &now);
        rows.truncate(1);
        (rows[0].seconds, rows[0].grown[record::BYTES]) = (2.0, 50_000_000_000);
        let port = folder.path().join(&rows[0].end.device).join("ports/1");
        std::fs::create_dir_all(&port).expect("a folder");
        std::fs::write(port.join("rate"), rate).expect("written");
        let ports = crate::top::rates::read(folder.path());
        let view = View {
            now: &now,
            rows: &rows,
            ports: &ports,
            port_rates: &BTreeMap::new(),
            sort: Sort::P99,
            width: 80,
            has_keys: false,
        };
        let line = view.devices().lines().nth(1).expect("a device").to_owned();
        line.split_whitespace().nth_back(6).expect("a column").to_owned()
    }

    #[test]
    fn gigabytes_are_also_a_share_of_the_links_rate() {
        assert_eq!(share_of("400 Gb/sec (4X NDR)\n"), "50%");
        assert_eq!(share_of("2.5 Gb/sec (1X SDR)\n"), "8000%");
        assert_eq!([share_of("not known"), share_of("")], ["-", "-"]);
    }

    #[test]
    fn numbers_and_times_are_short() {
        let counts = [0.0, 9999.0, 9999.5, 92_100.0, 999_500.0, 1e9].map(count);
        assert_eq!(counts, ["0", "9999", "10.0k", "92.1k", "1.0M", "1.0G"]);
        let times = [400.0, 99_949.0, 99_950.0, 480_000.0, 999_500.0, 8.1e6, 2.1e9, 12e9].map(time);
        assert_eq!(
            times,
            ["0.4 us", "99.9 us", "100 us", "480 us", "1.0 ms", "8.1 ms", "2.1 s", "12 s"]
        );
    }

    /// The example sender: these bytes on its lanes in two seconds, and lanes that
    /// have moved three times.
    fn row(lane_bytes: &[u64]) -> Row {
        row_with(lane_bytes, 3)
    }

    fn row_with(lane_bytes: &[u64], moves: u64) -> Row {
        let mut words = example();
        words[HEADER_WORDS + record::QP_COUNT] = lane_bytes.len() as u64;
        words[HEADER_WORDS + record::MOVES] = moves;
        words[HEADER_WORDS + record::RECOVERIES] = moves;
        words[HEADER_WORDS + record::LANE_BYTES..][..lane_bytes.len()].copy_from_slice(lane_bytes);
        let file = parsed(&words);
        let (number, record) = file.records().next().expect("one");
        let end = End::new(number, record);
        let (grown, stages) = (end.counters, end.stages);
        let lane_bytes = end.lanes.clone();
        Row {
            pid: 1,
            rank: Some(6),
            end,
            seconds: 2.0,
            grown,
            rail_bytes: Vec::new(),
            lane_bytes,
            stages,
        }
    }

    #[test]
    fn a_line_has_the_share_and_the_speed_of_each_lane() {
        let text = text(&[row(&[6_000_000_000, 2_000_000_000])]);
        let line = text.lines().nth(1).expect("a line");
        assert!(line.starts_with("    6 118 n-0412"), "{line:?}");
        assert!(line.ends_with("     3  75 (3.00) 25 (1.00)"), "{line:?}");
    }

    #[test]
    fn lanes_that_are_alike_over_many_bytes_are_said_to_be_of_no_use() {
        let says = |rows: &[Row]| {
            text(rows)
                .contains("1 sender(s) have had equal lanes from the start: there is one path")
        };
        let gb = 1_000_000_000;
        assert!(says(&[row_with(&[5 * gb, 5 * gb], 0)]));
        assert!(says(&[row_with(&[6 * gb, 6 * gb - gb / 4], 0), row_with(&[9 * gb, 5 * gb], 0)]));
        assert!(!says(&[row_with(&[6 * gb, 5 * gb], 0)]), "one is slower");
        assert!(!says(&[row_with(&[4 * gb, 4 * gb], 0)]), "too few bytes");
        assert!(!says(&[row_with(&[5 * gb, 5 * gb], 1)]), "a lane has got another path");
    }

    #[test]
    fn senders_without_lanes_are_counted() {
        let text = text(&[row(&[0, 0])]);
        assert_eq!(
            text.lines().nth(1),
            Some("1 sender(s) have one lane (the default) or have sent nothing (FERRITE_LANES)")
        );
    }
}
