//! A comparison over two hosts, each a process of this machine; and what a host may do wrong.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::common::{fake_nccl, loopback};
use lab::pair::PairPermit;
use lab::results::record::Record;
use serde_json::json;
use sha2::{Digest, Sha256};
use testkit::port::accepted;
use testkit::{Scratch, program};

/// `ferrite compare` of the loopback with a stand-in for NCCL.
fn compare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrite"));
    command.args(["compare", "--verbs", "system", "--sizes", "8", "--connections", "2"]);
    command.args(["--timeout", "30", "--token", "t", "--plugin"]).arg(loopback());
    command.env("FERRITE_NCCL", fake_nccl()).env_remove("RUST_LOG");
    command
}

/// Rank 0's host, which has said where it waits for the other one.
struct Server {
    child: Child,
    log: BufReader<ChildStderr>,
    place: String,
    report: Scratch,
}

/// One that measures once.
fn server(words: &[&str]) -> Server {
    server_of("600", &[&["--sets", "1"], words].concat(), "warn")
}

/// One that measures for so many seconds.
fn server_of(seconds: &str, words: &[&str], log: &str) -> Server {
    let report = Scratch::new();
    let mut command = compare();
    command.args(["--serve", "127.0.0.1:0", "--seconds", seconds, "--report"]).arg(report.path());
    command.args(words).env("RUST_LOG", log);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let mut log = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("THIS_HOST:") {
        line.clear();
        assert_ne!(log.read_line(&mut line).expect("text"), 0, "the server ended");
    }
    let port = line
        .split("THIS_HOST:")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .expect("where it is");
    Server { place: format!("127.0.0.1:{port}"), child, log, report }
}

impl Server {
    /// Its exit code, stdout and stderr.
    fn ended(&mut self) -> (i32, String, String) {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.child.stdout.take().expect("piped").read_to_string(&mut stdout).expect("text");
        self.log.read_to_string(&mut stderr).expect("text");
        (self.child.wait().expect("it ends").code().unwrap_or(-1), stdout, stderr)
    }

    /// Reads its log until rank 0 of so many sessions has begun.
    fn wait_for_sessions(&mut self, count: usize) {
        let mut begun = 0;
        while begun < count {
            let mut line = String::new();
            assert_ne!(self.log.read_line(&mut line).expect("text"), 0, "it ended by itself");
            begun += usize::from(line.contains("rank 0: ") && line.contains("Loopback 0.0.1"));
        }
    }

    /// It has ended as not valid, and says these words.
    #[track_caller]
    fn invalid(mut self, words: &[&str]) {
        let (code, stdout, stderr) = self.ended();
        assert_eq!(code, 2, "{stdout}{stderr}");
        for word in words {
            assert!(stderr.contains(word), "{word:?} is missing: {stderr}");
        }
    }

    /// A caller that says this.
    fn call(&self, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.place).expect("connected");
        stream.write_all(text.as_bytes()).expect("sent");
        stream
    }
}

/// The other host, with these words.
fn other(place: &str, words: &[&str]) -> program::Printed {
    program::run(compare().arg(place).args(words))
}

/// What a host of this version says first, which has the libraries that the server has.
fn hello(version: &str) -> String {
    let file = |path: &Path| {
        let hash = Sha256::digest(std::fs::read(path).expect("a library"));
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        json!({"path": path, "sha256": hash})
    };
    let files = [file(&fake_nccl()), file(&loopback())];
    let facts = json!({"host": "elsewhere", "version": version, "verbs": "system", "files": files});
    format!("{}\n", json!({"token": "t", "facts": facts}))
}

fn version() -> String {
    let printed = program::run(Command::new(env!("CARGO_BIN_EXE_ferrite")).arg("-V"));
    printed.stdout.trim().trim_start_matches("ferrite ").to_owned()
}

#[test]
fn two_hosts_bring_one_report_that_names_both() {
    let _turn = PairPermit::wait();
    let mut server = server(&["--set-b", "NCCL_LOOPBACK_WORD=to both"]);
    let mut host = compare();
    host.arg(&server.place).env("RUST_LOG", "debug").env("NCCL_IB_TC", "106");
    let host = program::run(&mut host);
    let (code, stdout, stderr) = server.ended();
    // One set tells nothing.
    assert_eq!((code, host.status.code()), (3, Some(0)), "{stdout}{stderr}{host}");
    let read =
        |name: &str| std::fs::read_to_string(server.report.join(name)).expect("it was written");
    let record: Record = serde_json::from_str(&read("raw.json")).expect("it is a record");
    let there = record.other_machine.as_ref().expect("two hosts");
    assert!(record.complete && !there.host.is_empty(), "{there:?}");
    assert_eq!(there.environment.get("NCCL_IB_TC").map(String::as_str), Some("106"));
    assert!(record.rows.iter().all(|row| row.judgement.ratio.is_some()), "{:?}", record.rows);
    let on = format!("{} loop0 to {} loop0", record.machine.host, there.host);
    assert!(stdout.contains(&on), "{stdout}");
    for text in [&stderr, &read("report.md")] {
        assert!(text.contains("the hosts are not alike: NCCL_IB_TC is unset on"), "{text}");
    }
    // The variable of B reaches rank 1 as well, and A does not get it.
    let count = |words: &str| host.stderr.matches(words).count();
    assert_eq!(count("NET/Loopback : Loopback"), 2 * count("the word is to both"), "{host}");
    assert!(count("the word is to both") > 0, "{host}");
}

#[test]
fn a_host_without_the_plugin_and_one_of_another_version_are_told_on_both() {
    let lacking = server(&[]);
    let host = other(&lacking.place, &["--nccl", "/no/such.so"]);
    assert_eq!(host.status.code(), Some(2), "{host}");
    assert!(host.stderr.contains("/no/such.so"), "{host}");
    lacking.invalid(&["refused: ", "/no/such.so"]);

    let newer = server(&[]);
    let mut answer = String::new();
    newer.call(&hello("9.9.9")).read_to_string(&mut answer).expect("text");
    assert!(answer.contains("Refused") && answer.contains("9.9.9 on elsewhere"), "{answer}");
    newer.invalid(&["9.9.9 on elsewhere: install the same files on both"]);
}

#[test]
fn a_host_that_goes_away_or_talks_nonsense_ends_the_comparison_in_words() {
    let gone = server(&[]);
    drop(gone.call(&hello(&version())));
    gone.invalid(&["the other host, elsewhere: "]);

    let nonsense = server(&[]);
    // A stranger without the token is in nobody's way.
    let stranger = nonsense.call("GET / HTTP/1.1\r\n\r\n");
    let mut host = nonsense.call(&hello(&version()));
    let mut asked = String::new();
    BufReader::new(&host).read_line(&mut asked).expect("what it is to do");
    assert!(asked.starts_with("{\"Start\":{\"number\":0,"), "{asked}");
    let purpose = |kind: &str| json!({"token": "t", "facts": {"number": 0, "kind": kind}});
    let both = ["Control", "Peer"].map(|kind| nonsense.call(&format!("{}\n", purpose(kind))));
    // Last: it may be what ends the server.
    host.write_all(b"{\"Started\":7}\n").expect("sent");
    nonsense.invalid(&["the other host, elsewhere: no such message"]);
    drop((stranger, both));
}

#[test]
fn a_host_that_is_killed_in_a_session_is_told() {
    let _turn = PairPermit::wait();
    let told = (0..10).find_map(|_| {
        let mut server = server_of("600", &[], "debug");
        let mut host = compare().arg(&server.place).stderr(Stdio::null()).spawn().expect("started");
        // Two verify.
        server.wait_for_sessions(3);
        host.kill().expect("it runs");
        host.wait().expect("it ends");
        let (code, stdout, stderr) = server.ended();
        assert_eq!(code, 2, "{stdout}{stderr}");
        // Rank 0 may have been about to connect to it: then that is what has failed first.
        (!stderr.contains("rank 0: IB: connect returned 2")).then_some(stderr)
    });
    let told = told.expect("one that is killed later");
    assert!(told.contains("rank 1: the other host: the connection "), "{told}");
}

#[test]
fn an_interrupted_comparison_reports_what_it_has_and_lets_the_other_host_go() {
    let _turn = PairPermit::wait();
    let mut server = server_of("600", &[], "debug");
    let host = compare().arg(&server.place).stderr(Stdio::piped()).spawn().expect("started");
    // Two pairs verify, and a pair says it for both sides: the eighth of rank 0 is of the third set.
    server.wait_for_sessions(8);
    // SAFETY: a signal to the child, which has not been waited for.
    unsafe { libc::kill(server.child.id().cast_signed(), libc::SIGINT) };
    let (code, stdout, stderr) = server.ended();
    assert_eq!(code, 130, "{stdout}{stderr}");
    assert!(stdout.contains("INTERRUPTED; until then: "), "{stdout}");
    let host = host.wait_with_output().expect("it ends");
    assert_eq!(host.status.code(), Some(0), "{}", String::from_utf8_lossy(&host.stderr));
}

/// Both are interrupted, and the other one is gone first.
#[test]
fn an_interrupted_comparison_reports_what_it_has_if_the_other_host_is_gone() {
    let _turn = PairPermit::wait();
    let mut server = server_of("600", &[], "debug");
    let mut host = compare().arg(&server.place).stderr(Stdio::null()).spawn().expect("started");
    server.wait_for_sessions(8);
    // SAFETY: a signal to the child, which has not been waited for.
    let signal = |signal| unsafe { libc::kill(server.child.id().cast_signed(), signal) };
    signal(libc::SIGSTOP);
    host.kill().expect("it runs");
    host.wait().expect("it ends");
    signal(libc::SIGINT);
    signal(libc::SIGCONT);
    let (code, stdout, stderr) = server.ended();
    assert_eq!(code, 130, "{stdout}{stderr}");
    assert!(stdout.contains("INTERRUPTED; until then: "), "{stdout}");
}

/// The host trusts the server no more than that one trusts it.
#[test]
fn a_server_that_goes_away_or_wants_what_it_may_not_have_ends_the_host_in_words() {
    for (said, words) in [("", "the server at 127.0.0.1"), ("[1]\n", "no such message")] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("its address").to_string();
        let talk = std::thread::spawn(move || {
            let mut host = accepted(&listener, "the host");
            BufReader::new(host.try_clone().expect("twice"))
                .read_line(&mut String::new())
                .expect("its hello");
            host.write_all(said.as_bytes()).expect("sent");
        });
        let host = other(&place, &[]);
        talk.join().expect("said");
        assert_eq!(host.status.code(), Some(2), "{host}");
        assert!(host.stderr.contains(words), "{host}");
    }
    let server = server(&["--set-a", "LD_PRELOAD=/tmp/x.so"]);
    let host = other(&server.place, &[]);
    assert_eq!(host.status.code(), Some(2), "{host}");
    server.invalid(&["LD_PRELOAD is not set by another host"]);
}

/// The other host may come while A is fetched.
#[test]
fn the_server_listens_before_it_looks_for_what_it_compares() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = taken.local_addr().expect("its address").to_string();
    let printed = program::run(compare().args(["--serve", &place, "--nccl", "/no/such.so"]));
    assert_eq!(printed.status.code(), Some(2), "{printed}");
    assert!(printed.stderr.contains(&format!("cannot listen at {place}")), "{printed}");
}

#[test]
fn three_ranks_are_refused_at_once() {
    for rank in ["0", "2"] {
        let mut command = compare();
        let variables = [("RANK", rank), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "localhost")];
        let printed = program::run(command.arg("--job").envs(variables));
        assert_eq!(printed.status.code(), Some(2), "{printed}");
        assert!(printed.stderr.contains("the launcher has started 3"), "{printed}");
    }
}
