//! The whole chain on the software device: stock NCCL's own IB transport, and the plugin against
//! it. Skipped, loudly, where a part is not built or not fetched.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lab::error::{Error, Result};
use lab::nccl::library::{Library, Source};
use lab::nccl::{release, shared_object};
use lab::pair;
use lab::pair::PeerConn;
use lab::pair::worker_ctx::Pages;
use lab::transport::Transport;
use lab::transport::buffer::Buffer;
use lab::transport::deadline::{finished, posted};
use testkit::{Scratch, require, test_name};

use crate::common::{
    cached_nccl, dist, fake_nccl, ferrite, loopback, run, setting, shared_object, stock_nccl,
};
use crate::text;

const FAST: &str = "--sets 1 --seconds 600 --timeout 60 --sizes 8,64K --connections 10";

/// A plugin around the plugin, which makes messages that travel alone take 2 us more.
#[test]
fn a_planted_delay_is_found_in_its_group_and_nowhere_else() {
    let dist = require!(dist(&["softrnic/libibverbs.so.1", "lib/libnccl-net.so"]));
    let (report, delay) = (Scratch::new(), shared_object("delay", &[]));
    let (sides, report) = (delay.display(), text(&report));
    let sets = "--set-a DELAY= --set-b DELAY=8:2000,4096:2000";
    let line = format!(
        "compare --against {sides} --plugin {sides} {sets} --seconds 30 --timeout 60 --report {report}"
    );
    let plugin = dist.join("lib/libnccl-net.so");
    let environment =
        [("FERRITE_DIST", text(&dist)), ("DELAY_OF", text(&plugin)), ("DELAY_WHEN", "alone")];
    let (code, stdout, stderr) = run(&line, &environment);
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(stdout.starts_with("B is WORSE than A: latency\n"), "{stdout}");
}

#[test]
fn nccls_own_loader_takes_the_plugin() {
    let parts = ["softrnic/libibverbs.so.1", "lib/libnccl-net.so"];
    let (dist, nccl) = (require!(dist(&parts)), require!(stock_nccl()));
    let (report, plugin) = (Scratch::new(), dist.join("lib/libnccl-net.so"));
    let plugin = std::fs::canonicalize(plugin).expect("it is there");
    let line = format!("bench --loader {} --report {} {FAST}", text(&plugin), text(&report));
    let environment = [("FERRITE_DIST", text(&dist)), ("FERRITE_NCCL", text(&nccl))];
    let (code, stdout, stderr) = run(&line, &environment);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let page = std::fs::read_to_string(report.join("report.md")).expect("it was written");
    assert!(page.contains("through NCCL's loader"), "{page}");
}

/// The first that can be opened is taken; a release that takes no lists refuses in words.
#[test]
fn the_loader_of_nccl_2_28_takes_a_list_and_that_of_2_21_does_not() {
    let dist = require!(dist(&["softrnic/libibverbs.so.1", "lib/libnccl-net.so"]));
    let plugin = std::fs::canonicalize(dist.join("lib/libnccl-net.so")).expect("it is there");
    let list = format!("spcx,/no/such.so,{}", plugin.display());
    for (release, expected) in [("2.28.9", 0), ("2.21.5", 2)] {
        let nccl = require!(cached_nccl(release));
        let line = format!("verify --loader {list} --over single --long 10");
        let (code, stdout, stderr) =
            run(&line, &[("FERRITE_DIST", text(&dist)), ("FERRITE_NCCL", text(&nccl))]);
        assert_eq!(code, expected, "NCCL {release}: {stdout}{stderr}");
        let words = "NCCL 2.21.5 takes one plugin, and 2.27 and later take a list";
        assert!(
            if code == 0 { stdout.starts_with("single: Ferrite ") } else { stderr.contains(words) },
            "{stdout}{stderr}"
        );
    }
    let nccl = require!(cached_nccl("2.28.9"));
    let missing = ["bench", "--loader", "/no/such.so,/no/other.so"];
    let (code, _, stderr) =
        ferrite(&missing, &[("FERRITE_DIST", text(&dist)), ("FERRITE_NCCL", text(&nccl))]);
    assert_eq!(code, 2);
    assert!(stderr.contains("cannot open /no/such.so"), "{stderr}");
}

/// NCCL 2.20 makes `libnccl-net-VALUE.so` of every value of `NCCL_NET_PLUGIN`, so it takes a name
/// and no path.
#[test]
fn the_loader_of_nccl_2_20_takes_a_name_and_no_path() {
    let dist = require!(dist(&["softrnic/libibverbs.so.1", "lib/libnccl-net-ferrite.so"]));
    let nccl = require!(cached_nccl("2.20.5"));
    let folder = std::fs::canonicalize(dist.join("lib")).expect("it is there");
    let path = folder.join("libnccl-net.so");
    for (value, code) in [("ferrite", 0), (text(&path), 2)] {
        let line = format!("verify --loader {value} --over single --long 10");
        let environment = [
            ("FERRITE_DIST", text(&dist)),
            ("FERRITE_NCCL", text(&nccl)),
            ("LD_LIBRARY_PATH", text(&folder)),
        ];
        let (found, stdout, stderr) = run(&line, &environment);
        assert_eq!(found, code, "{value}: {stdout}{stderr}");
        let words = format!("did not take NCCL_NET_PLUGIN={value}");
        assert!(
            if code == 0 {
                stdout.starts_with("single: Ferrite ")
            } else {
                stderr.contains(&words)
            },
            "{stdout}{stderr}"
        );
    }
}

#[test]
fn a_transport_that_does_not_use_the_software_device_is_refused() {
    let folder = Scratch::new();
    std::fs::write(folder.join("libibverbs.so.1"), "").expect("it can be written");
    let plugin = loopback();
    let line = format!("bench --plugin {} --softrnic {} {FAST}", text(&plugin), text(&folder));
    let (code, _, stderr) = run(&line, &[]);
    assert_eq!(code, 2);
    assert!(stderr.contains("has mapped no libibverbs at all"), "{stderr}");
}

/// A copy of the plugin that says it is another build, in place of an older release.
fn another_build(plugin: &Path, folder: &Scratch) -> PathBuf {
    let mut bytes = std::fs::read(plugin).expect("it is there");
    // Followed by digits: what reads it has the words alone.
    let label = b"ferrite-version=0.";
    let at = bytes
        .windows(label.len())
        .position(|window| window == label)
        .expect("it tells its version");
    let build = bytes[at..].iter().position(|byte| *byte == b'+').expect("a commit") + at + 1;
    bytes[build..build + 12].copy_from_slice(b"0123456789ab");
    let path = folder.join("older.so");
    std::fs::write(&path, bytes).expect("it can be written");
    path
}

#[test]
fn two_builds_of_the_plugin_are_verified_against_each_other() {
    let dist = require!(dist(&["softrnic/libibverbs.so.1", "lib/libnccl-net.so"]));
    let (folder, plugin) = (Scratch::new(), dist.join("lib/libnccl-net.so"));
    let older = another_build(&plugin, &folder);
    for (zero, one) in [(&plugin, &older), (&older, &plugin)] {
        let sides = format!("--plugin {} --peer-plugin {}", text(zero), text(one));
        let line = format!("verify {sides} --over single --long 50");
        let (code, stdout, stderr) = run(&line, &[("FERRITE_DIST", text(&dist))]);
        assert_eq!(code, 0, "{stdout}{stderr}");
        let (rank0, rank1) = stdout.split_once("; rank 1: Ferrite ").expect("both are named");
        let is_older =
            |words: &str| words.lines().next().is_some_and(|line| line.contains("+0123456789ab"));
        assert_eq!((is_older(rank0), is_older(rank1)), (zero == &older, one == &older), "{stdout}");
    }
}

#[test]
fn a_plugin_that_the_other_end_does_not_understand_is_told_with_what_it_says() {
    let dist = require!(dist(&["softrnic/libibverbs.so.1", "lib/libnccl-net.so"]));
    let plugin = dist.join("lib/libnccl-net.so");
    let foreign = loopback();
    let against = |peer: &Path| {
        let sides = format!("--plugin {} --peer-plugin {}", text(&plugin), text(peer));
        run(&format!("verify {sides} --over single"), &[("FERRITE_DIST", text(&dist))])
    };
    let (code, stdout, stderr) = against(&foreign);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    let (code, _, stderr) = against(&plugin);
    assert_eq!(code, 2);
    assert!(stderr.contains("--peer-plugin is the file that --plugin names"), "{stderr}");
}

fn refusal(source: &Source) -> String {
    match Library::open(source) {
        Err(problem) => problem.to_string(),
        Ok(library) => panic!("{source:?} was taken as {library:?}"),
    }
}

#[test]
fn a_plugin_is_loaded_and_identified() {
    let path = loopback();
    let library = Library::open(&Source::plugin(&path)).expect("the loopback is a plugin");
    let identity = library.identity();
    assert_eq!(identity.name, "Loopback");
    assert_eq!(identity.symbol, "ncclNetPlugin_v8");
    assert_eq!(identity.functions, 15);
    assert_eq!(identity.file, std::fs::canonicalize(path).expect("it exists"));
    assert_eq!((identity.nccl_version, identity.interface), (None, 8));
}

/// glibc says of it that there is no such file.
#[test]
fn a_plugin_for_another_processor_is_refused_with_what_helps() {
    let folder = Scratch::new();
    let mut bytes = std::fs::read(loopback()).expect("it is there");
    // `e_machine` of the ELF header: SPARC.
    bytes[18..20].copy_from_slice(&2u16.to_le_bytes());
    let path = folder.join("other.so");
    std::fs::write(&path, bytes).expect("it can be written");
    let words = refusal(&Source::plugin(&path));
    assert!(
        words.contains("it is for another processor (ELF machine 2): install the package for "),
        "{words}"
    );
}

#[test]
fn the_built_in_transport_is_found_by_its_local_symbol() {
    let library = Library::open(&Source::stock(fake_nccl())).expect("it has the shape");
    assert_eq!(library.identity().name, "IB");
    assert_eq!(library.identity().nccl_version, Some(22105));
}

#[test]
fn a_built_in_transport_of_another_name_is_refused() {
    let path = shared_object("loopback", &["-DAS_NCCL=22105", "-DVTABLE_NAME=\"Socket\""]);
    assert!(refusal(&Source::stock(path)).contains("is named \"Socket\", not \"IB\""));
}

#[test]
fn another_version_is_refused() {
    let path = shared_object("loopback", &["-DAS_NCCL=21903", "-DVTABLE_NAME=\"IB\""]);
    let words = refusal(&Source::stock(&path));
    assert!(
        words.ends_with(
            "is NCCL 2.19.3; known are 2.20.5, 2.21.5, 2.25.1, 2.27.5, 2.28.9, 2.29.7, 2.30.7, 2.31.2, 2.32.3"
        ),
        "{words}"
    );
    assert!(release::verify(&path).is_err());
}

#[test]
fn a_missing_symbol_names_file_and_symbol() {
    let path = loopback();
    let words = refusal(&Source::stock(&path));
    assert!(
        words.contains(&path.file_name().expect("it has a name").to_string_lossy().into_owned()),
        "{words}"
    );
    assert!(words.contains("has no symbol ncclNetIb"), "{words}");
}

#[test]
fn an_older_plugin_is_named_as_such() {
    let words = refusal(&Source::plugin(shared_object("loopback", &["-DONLY_V6"])));
    assert!(words.ends_with("it exports ncclNetPlugin_v5, ncclNetPlugin_v6 only"), "{words}");
}

#[test]
fn a_vtable_with_a_null_function_is_refused() {
    let words = refusal(&Source::plugin(shared_object("loopback", &["-DNO_TEST"])));
    assert!(words.ends_with("has no test"), "{words}");
}

#[test]
fn a_function_of_another_library_is_refused() {
    let words = refusal(&Source::plugin(shared_object("loopback", &["-DFOREIGN_TEST"])));
    assert!(words.contains("refused: test of the vtable in"), "{words}");
    assert!(words.contains("libc.so"), "{words}");
}

#[test]
fn what_is_no_library_is_refused() {
    assert!(refusal(&Source::plugin("/etc/passwd")).contains("not a whole ELF file"));
    assert!(refusal(&Source::stock("/no/such/file")).contains("cannot open /no/such/file"));
}

#[test]
fn a_file_cut_short_is_not_even_loaded() {
    let whole = std::fs::read(fake_nccl()).expect("it can be read");
    let folder = Scratch::new();
    let cut = folder.write("libnccl.so.2", &whole[..whole.len() * 2 / 3]);
    let words = refusal(&Source::stock(&cut));
    assert!(words.contains("not a whole ELF file") || words.contains("has no symbol"), "{words}");
}

#[test]
fn a_stripped_file_says_so() {
    let stripped = shared_object("loopback", &["-DAS_NCCL=22105", "-DVTABLE_NAME=\"IB\"", "-s"]);
    match shared_object::local_symbol(&stripped, "ncclNetIb") {
        Err(Error::Symbol { hint, .. }) => assert!(hint.contains("stripped"), "{hint}"),
        other => panic!("{other:?}"),
    }
    assert!(
        shared_object::exports(&stripped, "ncclGet").expect("it is an ELF file")
            == ["ncclGetVersion"]
    );
}

#[test]
fn a_symbol_of_this_program_is_found() {
    let own = std::env::current_exe().expect("it runs");
    assert!(shared_object::local_symbol(&own, "main").is_ok_and(|value| value > 0));
    assert!(shared_object::local_symbol(Path::new("/etc/hostname"), "x").is_err());
}

#[test]
fn a_message_arrives_each_way() -> Result<()> {
    let sizes = pair::run(&test_name(), &setting(), |worker| {
        let transport = Transport::open(&Source::plugin(loopback()))?;
        assert_eq!(transport.name(), "Loopback");
        assert_eq!(transport.devices()?, 1);
        assert_eq!(transport.properties(0)?.name, "loop0");
        let link = PeerConn::open(worker, &transport, 0)?;
        let memory = Arc::new(Buffer::new(8192)?);
        let (out, into) = (link.send.register(&memory)?, link.recv.register(&memory)?);
        let text = format!("hello from {}", worker.rank());
        memory.write(0, text.as_bytes())?;
        let mut deadline = worker.deadline("a message");
        let mut sizes = [0];
        let receive = posted(&mut deadline, || link.recv.receive(&into, 4096, 4096, 5))?;
        let send = posted(&mut deadline, || link.send.send(&out, 0, text.len(), 5))?;
        finished(&mut deadline, send, &mut sizes)?;
        finished(&mut deadline, receive, &mut sizes)?;
        let got = memory.read(4096, usize::try_from(sizes[0]).unwrap_or(0))?;
        drop((out, into));
        link.close()?;
        Ok(String::from_utf8_lossy(&got).into_owned())
    })?;
    assert_eq!(sizes, ["hello from 1", "hello from 0"]);
    Ok(())
}

#[test]
fn buffers_lie_in_the_pages_that_the_parent_has_for_the_rank() -> Result<()> {
    let mut setting = setting();
    setting.pages = Some(Pages::of_both_ranks()?);
    let mut seen = Vec::new();
    // The same closure in two pairs of processes, one after the other.
    for _ in 0..2 {
        seen.push(pair::run(&test_name(), &setting, |worker| {
            let (first, second) = (worker.buffer(4096)?, worker.buffer(8192)?);
            let found = [first.read(0, 1)?[0], second.read(8191, 1)?[0]];
            first.write(0, &[10 + worker.rank() as u8])?;
            second.write(8191, &[20 + worker.rank() as u8])?;
            Ok(found)
        })?);
    }
    assert_eq!(seen, [[[0, 0], [0, 0]], [[10, 20], [11, 21]]]);
    Ok(())
}

/// What the parent gets when the processes do `body`.
fn failing(
    test: &str,
    body: impl FnOnce(&mut pair::WorkerCtx) -> Result<()>,
) -> (usize, String, Vec<String>) {
    match pair::run(test, &setting(), body) {
        Err(Error::Worker { rank, what, log, .. }) => (rank, what, log),
        other => panic!("expected a failed worker, got {other:?}"),
    }
}

#[test]
fn a_hung_process_is_given_up() {
    let mut setting = setting();
    setting.silence = Duration::from_secs(5);
    let outcome = pair::run(&test_name(), &setting, |worker| {
        worker.begin("sleeping")?;
        std::thread::sleep(Duration::from_secs(3600));
        Ok(())
    });
    let Err(Error::Worker { what, .. }) = outcome else {
        panic!("expected a failed worker, got {outcome:?}")
    };
    assert!(what.contains("no sign of life for 5.0 s"), "{what}");
    assert!(what.contains("rank 1 was sleeping"), "{what}");
}

#[test]
fn the_error_of_the_process_that_failed_first_is_reported() {
    let (rank, what, _) =
        failing("softrnic::the_error_of_the_process_that_failed_first_is_reported", |worker| {
            if worker.rank() == 1 {
                return Err(Error::Data("the real reason".into()));
            }
            // The peer's end closes when its process ends.
            worker.barrier()
        });
    assert_eq!((rank, what.as_str()), (1, "wrong data: the real reason"));
}

#[test]
fn a_failed_assertion_is_reported() {
    let (_, what, _) = failing("softrnic::a_failed_assertion_is_reported", |worker| {
        assert!(worker.rank() > 1, "no such rank");
        Ok(())
    });
    assert_eq!(what, "wrong data: no such rank");
}

#[test]
fn a_wrong_test_name_is_a_clear_error() {
    let outcome = pair::run("no_such_test", &setting(), |_| Ok(()));
    assert!(matches!(outcome, Err(Error::Misuse(_))), "{outcome:?}");
}
