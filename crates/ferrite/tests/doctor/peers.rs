//! Several hosts, each a process of this machine, on one fabric.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use testkit::softrnic::Softrnic;
use testkit::{Missing, dist, require};

use crate::common::ferrite;

/// A session of two hosts: what is different for the host that is not the server.
struct Hosts {
    softrnic: Softrnic,
    other: Vec<(&'static str, &'static str)>,
}

/// What came of it.
struct Outcome {
    /// Exit codes of the server and of the other host.
    codes: (i32, i32),
    report: Value,
}

fn two_hosts() -> Hosts {
    Hosts { softrnic: Softrnic::new().env("SOFTRNIC_TIME_SCALE", "0.01"), other: Vec::new() }
}

/// The doctor with the software device and the built plugin.
fn doctor(softrnic: &Softrnic) -> Result<Command, Missing> {
    let (library, plugin) = (dist::softrnic_library_folder()?, dist::plugin()?);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrite"));
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if name.starts_with("NCCL_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    let dist = plugin.parent().and_then(Path::parent).expect("dist/lib");
    command
        .env("LD_LIBRARY_PATH", library)
        .env("FERRITE_DIST", dist)
        .envs(softrnic.vars())
        .arg("doctor");
    Ok(command)
}

/// A server with the token `t`, and its port.
fn server(
    softrnic: &Softrnic,
    words: &[&str],
) -> Result<(Child, BufReader<std::process::ChildStderr>, u16), Missing> {
    let mut command = doctor(softrnic)?;
    command.args(["--serve", "127.0.0.1:0", "--token", "t", "--slice", "5", "--json"]).args(words);
    let mut server =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut log = BufReader::new(server.stderr.take().expect("piped"));
    let mut port = None;
    while port.is_none() {
        let mut line = String::new();
        assert_ne!(log.read_line(&mut line).expect("text"), 0, "the server ended");
        port = line
            .split("ferrite doctor ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next()?.split_once(':')?.1.parse().ok());
    }
    Ok((server, log, port.unwrap_or(0)))
}

/// Its exit code and report.
fn ended(mut server: Child, mut log: BufReader<std::process::ChildStderr>) -> (i32, Value) {
    let mut stdout = String::new();
    let mut pipe = server.stdout.take().expect("piped");
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        log.read_to_string(&mut said).unwrap_or_default();
        said
    });
    pipe.read_to_string(&mut stdout).expect("text");
    let status = server.wait().expect("it ends");
    let log = reader.join().expect("read");
    (
        status.code().unwrap_or(-1),
        serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}{log}")),
    )
}

impl Hosts {
    fn softrnic(mut self, name: &str, value: &str) -> Self {
        self.softrnic = self.softrnic.env(name, value);
        self
    }

    fn other(mut self, name: &'static str, value: &'static str) -> Self {
        self.other.push((name, value));
        self
    }

    fn run(self) -> Result<Outcome, Missing> {
        let (server, log, port) = server(&self.softrnic, &["--hosts", "2"])?;
        let mut host = doctor(&self.softrnic)?;
        host.args([&format!("127.0.0.1:{port}"), "--token", "t"]).envs(self.other.iter().copied());
        let host = testkit::program::run(&mut host).into_parts().0;
        let (code, report) = ended(server, log);
        self.softrnic.assert_clean();
        Ok(Outcome { codes: (code, host), report })
    }
}

impl Outcome {
    fn find(&self, name: &str) -> &Value {
        let rows = self.report["rows"].as_array().expect("rows");
        rows.iter().find(|row| row["name"] == name).expect("the row")
    }

    fn verdict(&self, name: &str) -> &str {
        self.find(name)["verdict"].as_str().expect("text")
    }

    #[track_caller]
    fn row(&self, name: &str, verdict: &str, words: &[&str]) {
        let row = self.find(name);
        assert_eq!(row["verdict"], verdict, "{row}");
        for word in words {
            assert!(row.to_string().contains(word), "{word:?} is missing: {row}");
        }
    }
}

#[test]
fn two_hosts_that_are_alike_reach_each_other_over_each_rail() {
    let outcome = require!(two_hosts().run());
    for row in ["peer-versions", "peer-settings", "peer-devices", "peer-networks", "peer-mtu"] {
        outcome.row(row, "ok", &[]);
    }
    outcome.row("peer-reach", "ok", &["4 pairs of rails"]);
    // How fast they are depends on this machine.
    outcome.row("peer-latency", outcome.verdict("peer-latency"), &["softrnic1:1"]);
    outcome.row(
        "peer-bandwidth",
        "ok",
        &["softrnic1:1", "A software device is as fast as its processor"],
    );
    // The page explains each of them.
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md"))
            .expect("the page");
    for row in outcome.report["rows"].as_array().expect("rows") {
        let name = row["name"].as_str().expect("text");
        assert!(page.contains(&format!("| `{name}` |")), "{name}");
    }
}

#[test]
fn settings_that_differ_warn_with_both_values() {
    let outcome = require!(two_hosts().other("NCCL_IB_TC", "106").run());
    outcome.row(
        "peer-settings",
        "warn",
        &["NCCL_IB_TC: ", "106", "unset on", "alike on every host"],
    );
}

#[test]
fn another_number_of_rails_fails_on_both_hosts() {
    let outcome = require!(two_hosts().other("NCCL_IB_HCA", "softrnic0").run());
    outcome.row("peer-devices", "FAIL", &["1 rails on", "2 rails on"]);
    outcome.row("peer-reach", "ok", &["2 pairs of rails"]);
    assert_eq!(outcome.codes, (1, 1));
}

#[test]
fn gids_of_other_networks_warn() {
    let outcome = require!(
        two_hosts()
            .softrnic("SOFTRNIC_GIDS", "rich")
            .other("NCCL_IB_ADDR_FAMILY", "AF_INET6")
            .run()
    );
    outcome.row("peer-networks", "warn", &["10.82.1.0/24", "fd52:4e49"]);
}

#[test]
fn rails_that_lose_everything_fail_with_the_plugins_words() {
    let outcome = require!(
        two_hosts().softrnic("SOFTRNIC_FAULTS", "drop attempts=all device=softrnic1").run()
    );
    outcome.row("peer-reach", "FAIL", &["softrnic1:1 to", "status 12"]);
    outcome.row("peer-latency", outcome.verdict("peer-latency"), &["softrnic0:1"]);
    assert_eq!(outcome.codes, (1, 1));
}

#[test]
fn a_host_that_does_not_come_fails() {
    let softrnic = Softrnic::new();
    let (server, log, _) = require!(server(&softrnic, &["--hosts", "3", "--wait", "1"]));
    let (code, report) = ended(server, log);
    assert_eq!(code, 1);
    Outcome { codes: (code, 0), report }.row("peer-hosts", "FAIL", &["of 3 hosts came"]);
}

/// Callers without the token, with lines that are too long, that are no JSON, or that never end,
/// while a session begins.
#[test]
fn strangers_are_refused_and_do_not_keep_hosts_out() {
    let softrnic = Softrnic::new().env("SOFTRNIC_TIME_SCALE", "0.01");
    let (server, log, port) = require!(server(&softrnic, &["--hosts", "2"]));
    let call = |text: &[u8]| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        stream.write_all(text).unwrap_or_default();
        stream
    };
    let silent = call(b"");
    let unfinished = call(b"{\"token\":\"t");
    drop(call(&[b'['; 200_000]));
    drop(call(b"GET / HTTP/1.1\r\n\r\n"));
    let other = br#"{"token":"x","facts":{"host":"h","version":"","protocol":4,"plugin":"","settings":{},"rails":[]}}"#;
    let mut refused = String::new();
    let mut stranger = call(&[other, &b"\n"[..]].concat());
    stranger.read_to_string(&mut refused).unwrap_or_default();
    assert!(refused.contains("another token"), "{refused}");
    let mut host = require!(doctor(&softrnic));
    host.args([&format!("127.0.0.1:{port}"), "--token", "t"]);
    let host = testkit::program::run(&mut host);
    let (code, report) = ended(server, log);
    drop((silent, unfinished));
    let outcome = Outcome { codes: (code, 0), report };
    // Slow answers, on a machine that is busy, are no failure.
    assert_ne!(outcome.verdict("peer-hosts"), "FAIL", "{}", outcome.report);
    assert!(host.status.code().is_some_and(|code| code < 2), "{host}");
}

/// A host that has the token and then says nothing, or nonsense, fails alone.
#[test]
fn a_host_that_goes_away_fails_by_name_and_the_session_ends() {
    let softrnic = Softrnic::new();
    let (server, log, port) = require!(server(&softrnic, &["--hosts", "2"]));
    let hello = br#"{"token":"t","facts":{"host":"gone","version":"","protocol":4,"plugin":"","settings":{},"rails":[{"name":"x0:1","speed_mbps":1,"infiniband":false,"mtu":1024,"gid":""}]}}"#;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    stream.write_all(&[hello, &b"\n"[..]].concat()).expect("sent");
    stream.write_all(b"\"Done\"\n\"Done\"\n{\"Handle\":\"zz\"}\nnonsense\n").expect("sent");
    let (code, report) = ended(server, log);
    assert_eq!(code, 1);
    let outcome = Outcome { codes: (code, 0), report };
    outcome.row("peer-reach", "FAIL", &["gone"]);
    outcome.row("peer-devices", "FAIL", &["1 rails on gone"]);
}

#[test]
fn another_token_is_refused_in_words() {
    let softrnic = Softrnic::new();
    let (mut server, _log, port) = require!(server(&softrnic, &["--hosts", "2"]));
    let mut host = require!(doctor(&softrnic));
    host.args([&format!("127.0.0.1:{port}"), "--token", "other"]);
    let host = testkit::program::run(&mut host);
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    assert_eq!(host.status.code(), Some(2), "{host}");
    assert!(host.stderr.contains("another token"), "{host}");
}

const BEGIN: &str = "<!-- rows: written by crates/ferrite/tests/doctor/peers.rs -->\n";
const END: &str = "<!-- end of rows -->";

fn table() -> String {
    let (code, stdout, stderr) = ferrite(&["doctor", "--list", "--json"], &[]);
    assert_eq!(code, 0, "{stderr}");
    let rows: Value = serde_json::from_str(&stdout).expect("JSON");
    let mut lines = String::from("| row | checks | cure |\n|---|---|---|\n");
    for row in rows.as_array().expect("rows") {
        let cell = |name: &str| row[name].as_str().expect("text").replace('|', "\\|");
        lines += &format!("| `{}` | {} | {} |\n", cell("name"), cell("what"), cell("cure"));
    }
    lines
}

#[test]
fn the_page_has_each_row_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (head, rest) = page.split_once(BEGIN).expect("the begin mark");
    let (written, tail) = rest.split_once(END).expect("the end mark");
    if std::env::var_os("FERRITE_UPDATE").is_some() {
        std::fs::write(&path, format!("{head}{BEGIN}{}{END}{tail}", table())).expect("written");
    } else {
        assert!(
            written == table(),
            "write it anew: FERRITE_UPDATE=1 cargo test -p ferrite --test doctor page"
        );
    }
}
