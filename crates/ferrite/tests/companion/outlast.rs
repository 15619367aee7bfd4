//! `ferrite outlast` on the software device: it finds what it must find, ends what hangs, and
//! leaves nothing behind. Skipped, loudly, where a part is not built.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{self, dist, ferrite, loopback, stock_nccl, words};
use crate::text;
use testkit::unique::unique_name;
use testkit::{Missing, require};

const STREAM: &str = "--lasting 600ms --period 3ms --size 10000 --limit 20";

/// A folder in shared memory, for fabrics of one run alone.
struct SharedMemory(PathBuf);

impl SharedMemory {
    fn new() -> Self {
        let folder = Path::new("/dev/shm").join(unique_name("outlast"));
        std::fs::create_dir(&folder).expect("shared memory can be written");
        Self(folder)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap_or_default();
    }
}

/// The processes that have `mark` in their environment.
fn marked(mark: &str) -> Vec<PathBuf> {
    let is_marked = |process: &PathBuf| {
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|bytes| bytes == mark.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").expect("it is there").flatten();
    processes.map(|entry| entry.path()).filter(is_marked).collect()
}

/// What `ferrite outlast` did with these arguments and this environment: exit code, stdout, stderr.
/// No process and no fabric of the run is left.
fn outlast(
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<(i32, String, String), Missing> {
    let dist = dist(&["softrnic/libibverbs.so.1", "bin/softrnic"])?;
    let (mark, memory) = (unique_name("outlast"), SharedMemory::new());
    let mut all = vec!["outlast"];
    all.extend(arguments);
    let dist = std::fs::canonicalize(dist).expect("it is there");
    let mut variables = vec![
        ("FERRITE_DIST", text(&dist)),
        ("FERRITE_OUTLAST_TEST", &mark),
        ("SOFTRNIC_SHM_DIR", text(&memory.0)),
    ];
    variables.extend(environment);
    let printed = ferrite(&all, &variables);
    let left = marked(&mark);
    assert!(left.is_empty(), "processes are left: {left:?}");
    let left: Vec<_> = std::fs::read_dir(&memory.0).expect("it is there").flatten().collect();
    assert!(left.is_empty(), "fabrics are left: {left:?}");
    Ok(printed)
}

/// `ferrite outlast` of the plugin with the arguments in a line.
fn plugin(line: &str, environment: &[(&str, &str)]) -> Result<(i32, String, String), Missing> {
    let plugin = dist(&["lib/libnccl-net.so"])?.join("lib/libnccl-net.so");
    outlast(&[vec!["--plugin", text(&plugin)], words(line)].concat(), environment)
}

/// The same with a short stream and one fault.
fn struck(fault: &str) -> Result<(i32, String, String), Missing> {
    plugin(&format!("--fault '{fault}' --at 200ms {STREAM}"), &[])
}

#[test]
fn a_stream_that_nothing_happens_to_comes_to_its_end() {
    let (code, stdout, stderr) = require!(struck("port softrnic0/1 --mtu 4096"));
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(
        stdout.starts_with(
            "own 1: Ferrite on softrnic0 and softrnic1, 200 messages of 10000 B, seed 1\n"
        ),
        "{stdout}"
    );
    assert!(
        stdout.contains(" ms: port softrnic0/1 --mtu 4096\n  sender finished after "),
        "{stdout}"
    );
    assert!(
        stdout.contains("  200 of 200 messages, longest gap ")
            && stdout.contains("; 0 wrong bytes\n"),
        "{stdout}"
    );
    let payload =
        "  payload 2000000 B, sent and acknowledged 2000000 B, resent 0 B, transmissions lost 0; ";
    assert!(stdout.contains(payload), "{stdout}");
}

/// NCCL's version is the loader's, not the plugin's.
#[test]
fn a_plugin_that_nccls_loader_takes_has_its_own_name() {
    let plugin = require!(dist(&["lib/libnccl-net.so"])).join("lib/libnccl-net.so");
    let nccl = require!(stock_nccl());
    let plugin = std::fs::canonicalize(plugin).expect("it is there");
    let mut arguments =
        vec!["--loader", text(&plugin), "--fault", "port softrnic0/1 --mtu 4096", "--at", "200ms"];
    arguments.extend(STREAM.split(' '));
    let (code, stdout, stderr) = require!(outlast(&arguments, &[("FERRITE_NCCL", text(&nccl))]));
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.starts_with("own 1: Ferrite on softrnic0 and "), "{stdout}");
}

/// The sender's port falls, its messages meet no receives for a while, the receiver's queue pair
/// fails, and a port comes back with its addresses at other indices.
#[test]
fn a_stream_outlasts_faults_of_devices_with_all_that_cards_and_kernels_do_otherwise() {
    let mut arguments = "--finish --lasting 1500ms --limit 20 --period 3ms --size 10000".to_owned();
    for (fault, at) in [
        ("port softrnic0/1 down", "100ms"),
        ("port softrnic0/1 up", "120ms"),
        ("rnr device=softrnic0 opcode=write-imm attempts=all for=50ms", "500ms"),
        ("qp-error device=softrnic1 times=1", "520ms"),
        ("port-down=20ms gid=move device=softrnic0 times=1", "800ms"),
    ] {
        arguments += &format!(" --fault '{fault}' --at {at}");
    }
    let (code, stdout, stderr) = require!(plugin(&arguments, &common::OTHERWISE));
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(
        stdout.contains("  500 of 500 messages, ") && stdout.contains("; 0 wrong bytes\n"),
        "{stdout}"
    );
}

#[test]
fn a_flipped_bit_is_one_wrong_byte() {
    let (code, stdout, stderr) =
        require!(struck("corrupt device=softrnic0 opcode=write-imm times=1"));
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(
        stdout.contains("; 1 wrong bytes\n") && stdout.contains(": 1 of 10000 B wrong, from byte "),
        "{stdout}"
    );
    assert!(stderr.contains("wrong data: 1 wrong bytes"), "{stderr}");
}

#[test]
fn a_killed_peer_is_told_as_killed_and_the_other_end_with_its_error() {
    let (code, stdout, stderr) = require!(struck("kill receiver"));
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(
        stdout.contains("  sender got error 6 from ")
            && stdout.contains("; receiver was killed after "),
        "{stdout}"
    );
}

#[test]
fn a_stream_that_gets_nowhere_is_ended_by_the_limit() {
    // Retries that last longer than the limit.
    let retries = [("NCCL_IB_TIMEOUT", "20"), ("FERRITE_GIVE_UP", "100")];
    let arguments = "--fault 'drop attempts=all' --at 200ms --finish --lasting 600ms --period 3ms \
                     --size 10000 --limit 2";
    let (code, stdout, stderr) = require!(plugin(arguments, &retries));
    assert_eq!(code, 1, "{stdout}{stderr}");
    // The end whose limit comes first closes its connection, which the other one may see before its
    // own limit.
    assert!(
        stdout.contains("sender hung until ") || stdout.contains("receiver hung until "),
        "{stdout}"
    );
    // Each end sees it, since its calls return.
    assert!(!stdout.contains("no call returned"), "{stdout}");
    assert!(stderr.contains("1 of 1 streams did not come to their end"), "{stderr}");
}

/// Without failover, so that the retries decide when the sender gets its error: half a second if
/// they are shortened, else 34 s.
#[test]
fn retries_are_shortened_unless_the_transports_own_are_asked_for() {
    let arguments =
        "--fault 'drop attempts=all' --at 200ms --lasting 600ms --limit 8 --name lost".to_owned();
    let environment = [("FERRITE_FAILOVER", "0")];
    let (code, stdout, stderr) = require!(plugin(&arguments, &environment));
    assert!(code == 0 && stdout.starts_with("lost 1: Ferrite on "), "{stdout}{stderr}");
    assert!(stdout.contains("  sender got error 6 from "), "{stdout}");
    let own = arguments + " --own-defaults";
    let (code, stdout, stderr) = require!(plugin(&own, &environment));
    assert!(
        code == 0 && stdout.starts_with("lost 1: Ferrite with own defaults on "),
        "{stdout}{stderr}"
    );
    assert!(stdout.contains(" hung until ") && !stdout.contains("  sender got error "), "{stdout}");
}

#[test]
fn a_process_that_is_stopped_is_told_with_what_its_threads_did() {
    let arguments = "--fault 'stop receiver' --at 200ms --finish --lasting 60s --limit 4";
    let (code, stdout, stderr) = require!(plugin(arguments, &[]));
    assert_eq!(code, 1, "{stdout}{stderr}");
    let told = stdout
        .lines()
        .find_map(|line| line.split_once("receiver hung until "))
        .map(|(_, told)| told);
    let told = told.unwrap_or_else(|| panic!("{stdout}"));
    assert!(
        told.contains(": no call returned for ")
            && told.contains(" while receiving; threads in the last "),
        "{told}"
    );
    assert!(told.contains(" s for a processor, now is stopped"), "{told}");
}

#[test]
fn a_process_that_goes_on_comes_to_its_end() {
    let faults = "--fault 'stop sender' --at 200ms --fault 'continue sender' --at 300ms";
    let (code, stdout, stderr) = require!(plugin(&format!("{faults} --finish {STREAM}"), &[]));
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(
        stdout.contains(" ms: stop sender\n") && stdout.contains(" ms: continue sender\n"),
        "{stdout}"
    );
    assert!(stdout.contains("  200 of 200 messages, "), "{stdout}");
}

/// As when a virtual machine is stopped for a while: nobody has waited for as long as the clock
/// says.
#[test]
fn a_run_that_is_stopped_as_a_whole_goes_on() {
    let mark = unique_name("stopped");
    let run = std::thread::spawn({
        let mark = mark.clone();
        move || {
            let arguments = "--fault clear --at 1ms --finish --lasting 3s --limit 4";
            plugin(arguments, &[("FERRITE_STOPPED_TEST", &mark)])
        }
    });
    let is_one = |process: &PathBuf| {
        let command = std::fs::read(process.join("cmdline")).unwrap_or_default();
        command.windows(7).any(|bytes| bytes == b"outlast")
    };
    let mut all = Vec::new();
    while all.len() < 3 && !run.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
        all = marked(&mark).into_iter().filter(is_one).collect();
    }
    let signal = |signal| {
        for pid in all.iter().filter_map(|process| process.file_name()?.to_str()?.parse().ok()) {
            // SAFETY: a process of this test's; it takes numbers.
            unsafe { libc::kill(pid, signal) };
        }
    };
    std::thread::sleep(Duration::from_secs(1));
    signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_secs(9));
    signal(libc::SIGCONT);
    let (code, stdout, stderr) = require!(run.join().expect("it does not panic"));
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("  1500 of 1500 messages, "), "{stdout}");
}

#[test]
fn two_ports_are_one_device() {
    let arguments = format!("--fault clear --at 1ms --ports two {STREAM}");
    let (code, stdout, stderr) = require!(plugin(&arguments, &[]));
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains(" on softrnic0+softrnic1 and softrnic2+softrnic3, "), "{stdout}");
}

#[test]
fn outcomes_become_a_table() {
    let (code, stdout, stderr) = require!(plugin("--scenario none --reps 2 --format json", &[]));
    assert_eq!((code, stdout.lines().count()), (0, 2), "{stdout}{stderr}");
    let folder = testkit::Scratch::new();
    let file = folder.write("outcomes.jsonl", &stdout);
    let (code, page, stderr) = ferrite(&["outlast", "--table", text(&file)], &[]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        page.starts_with("| scenario | Ferrite |\n|---|---|\n| `none`: no fault | continues, gap "),
        "{page}"
    );
}

#[test]
fn a_wrong_command_line_is_told_before_anything_starts() {
    let transport = loopback();
    let transport = text(&transport);
    for (arguments, words) in [
        (&["--scenario", "flop"][..], "there is no scenario flop; there are none, "),
        (&["--fault", "drop"], "each --fault has one --at: there are 1 and 0"),
        (&["--at", "1s"], "each --fault has one --at: there are 0 and 1"),
        (&[], "name --scenario, or --fault and --at"),
        (
            &["--fault", "drop", "--at", "5"],
            "\"5\" is no time; times are written 50us, 300ms or 2s; at most 1000000s",
        ),
        (&["--fault", "drop", "--at", "3s"], "is not before --lasting 3s"),
        (&["--fault", "line up", "--at", "1s"], "it is `line cut` or `line silent TIME`"),
        (&["--fault", "drop message=x", "--at", "1s"], "--fault \"drop message=x\": "),
        (&["--fault", "frobnicate", "--at", "1s"], "there is no action"),
        (&["--scenario", "none", "--switches", "on"], "--switches is about --stock"),
        (&["--scenario", "none", "--own-defaults", "--switches", "off"], "cannot be used with"),
        (
            &["--fault", "drop", "--at", "1s", "--name", "none"],
            "--name none: a scenario has this name",
        ),
        (&["--scenario", "none", "--period", "0.5us"], "--period 500ns: it is 1us or more"),
        (&["--scenario", "none", "--size", "0"], "0 is not between"),
        (&["--scenario", "none", "--fault", "drop"], "cannot be used with"),
        (
            &["--scenario", "none", "--softrnic", "/no/such/folder"],
            "/no/such/folder/libibverbs.so.1",
        ),
    ] {
        let mut all = vec!["--plugin", transport];
        all.extend(arguments);
        let (code, stdout, stderr) = require!(outlast(&all, &[]));
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
    let (code, stdout, _) = ferrite(&["outlast", "--list"], &[]);
    assert_eq!(code, 0);
    assert!(stdout.contains("\nlate-write "), "{stdout}");
    let (code, _, stderr) = ferrite(&["outlast", "--table", "/no/such/file"], &[]);
    assert!(code == 2 && stderr.contains("/no/such/file"), "{stderr}");
}
