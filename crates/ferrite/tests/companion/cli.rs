//! The tool as a user meets it: exit codes, messages, and the files it writes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::cases;

use lab::measure::metric::Metric;
use lab::results::record::Record;
use testkit::unique::unique_name;
use testkit::{Scratch, program};

use crate::common::{fake_nccl, ferrite, loopback, run, shared_object, words};
use crate::text;

/// A run that measures once, without any NIC.
const FAST: &str = "--sets 1 --seconds 600 --sizes 8 --connections 2";
/// The same where something ends the run early, however slow the machine is until then.
const ENDS_EARLY: &str = "--seconds 600 --sizes 8 --connections 2";

/// The loopback, wrong in the way that `fault` names.
fn bench(fault: &str) -> (i32, String, String) {
    bench_for(fault, "30")
}

fn bench_for(fault: &str, timeout: &str) -> (i32, String, String) {
    let (report, plugin) = (Scratch::new(), loopback());
    let (report, plugin) = (report.display(), plugin.display());
    let scope = if fault.is_empty() { FAST } else { ENDS_EARLY };
    let line = format!(
        "bench --verbs system --plugin {plugin} {scope} --timeout {timeout} --report {report}"
    );
    run(&line, &[("LOOPBACK_FAULT", fault)])
}

/// The run is invalid and stderr has these words.
fn invalid((code, stdout, stderr): (i32, String, String), words: &[&str]) {
    assert_eq!(code, 2, "{stdout}{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is missing: {stderr}");
    }
    assert_eq!(
        stderr.lines().filter(|line| line.starts_with("ferrite: ")).count(),
        1,
        "it is told once: {stderr}"
    );
}

/// The transport was tried and is wrong, and stderr has these words.
fn wrong((code, stdout, stderr): (i32, String, String), words: &[&str]) {
    assert_eq!(code, 1, "{stdout}{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is missing: {stderr}");
    }
}

#[test]
fn help_is_valid_and_tells_exit_codes_defaults_and_examples() {
    let (code, stdout, _) = ferrite(&["--help"], &[]);
    assert_eq!(code, 0);
    for words in [
        "  1    something is wrong: a failed check",
        "  3    `compare`: undecided",
        "  130  interrupted",
    ] {
        assert!(stdout.contains(words), "{words:?} is missing: {stdout}");
    }
    for command in ["compare", "bench", "verify", "check", "solo", "cost", "trace"] {
        let (code, stdout, stderr) = ferrite(&[command, "--help"], &[]);
        assert_eq!(code, 0, "{stderr}");
        assert!(command == "bench" || stdout.contains("Exit code 0: "), "{stdout}");
    }
    let (_, stdout, _) = ferrite(&["compare", "--help"], &[]);
    for words in [
        "[default: 60; `bench`: 10]", "64K,256K", "a minute or less",
        "ferrite compare --seconds 300",
    ] {
        assert!(
            stdout.replace("\n          ", " ").contains(words),
            "{words:?} is missing: {stdout}"
        );
    }
}

#[test]
fn the_version_names_the_commit_and_the_plugin() {
    let dist = Scratch::new();
    std::fs::create_dir_all(dist.join("lib")).expect("a folder can be made");
    std::fs::write(dist.join("lib/libnccl-net.so"), "abc").expect("it can be written");
    let env = [("FERRITE_DIST", dist.to_str().expect("it is text"))];
    let (code, stdout, _) = ferrite(&["--version"], &env);
    // The digest of "abc" that FIPS 180-4 gives.
    assert!(
        stdout
            .contains("(sha256 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad)"),
        "{stdout}"
    );
    assert_eq!((code, stdout.lines().count()), (0, 2), "{stdout}");
    let (code, short, _) = ferrite(&["-V"], &env);
    assert_eq!((code, short.lines().next()), (0, stdout.lines().next()));
    // What cargo has built has no commit; scripts/build.sh writes it into its copy.
    assert_eq!(short, concat!("ferrite ", env!("CARGO_PKG_VERSION"), "+unknown\n"));
}

#[test]
fn wrong_command_lines_are_invalid() {
    for arguments in [
        &[][..],
        &["frobnicate"],
        &["bench", "--plugin", "x", "--loader", "x"],
        &["bench", "--plugin", "x", "--stock"],
        &["compare", "--seconds", "0"],
        &["compare", "--sizes", "8,huge"],
        &["bench", "--plugin", "x", "--verbs", "system", "--softrnic", "y"],
        &["bench", "--plugin", "/no/such/plugin.so", "--verbs", "system"],
        &["worker"],
    ] {
        let (code, stdout, stderr) = ferrite(arguments, &[]);
        assert_eq!(code, 2, "{arguments:?}: {stdout}{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn a_missing_software_device_is_named() {
    let (code, _, stderr) =
        ferrite(&["bench", "--plugin", "x", "--softrnic", "/no/such/folder"], &[]);
    assert_eq!(code, 2);
    assert!(stderr.contains("/no/such/folder/libibverbs.so.1"), "{stderr}");
}

#[test]
fn a_good_transport_is_valid() {
    let (code, stdout, stderr) = bench("");
    assert_eq!(code, 0, "{stderr}");
    for words in ["A = Loopback 0.0.1, loop0", "messages right; ", "GB/s", "valid run, data right"]
    {
        assert!(stdout.contains(words), "{words:?} is missing: {stdout}");
    }
}

cases! { ();
    no_device_shows_the_transports_log =>
        invalid(bench("none"), &["Loopback found no device", "NET/Loopback : Loopback 0.0.1"]);
    a_failing_init_is_named =>
        invalid(bench("init"), &["init returned 2 (ncclSystemError", "told to fail"]);
    a_failing_send_is_named => invalid(bench("error"), &["isend returned 2 (ncclSystemError"]);
}

#[test]
fn corrupt_data_is_caught_with_size_and_offset() {
    wrong(
        bench("corrupt"),
        &["wrong data", "single of 4097 B", "offset 2048: expected 0x", ", got 0x"],
    );
}

cases! { ();
    a_write_past_the_end_is_caught =>
        wrong(bench("past"), &["past the end, offset 0: expected 0xee, got 0xef"]);
    a_wrong_size_is_caught => wrong(bench("size"), &["the size is 4096, not 4097"]);
    a_dying_transport_is_caught =>
        invalid(bench("die"), &["the process died while verifying", "SIGSEGV"]);
    a_hanging_transport_is_given_up =>
        invalid(bench_for("hang", "10"), &["a single message: nothing for 8.0 s"]);
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    let line =
        format!("bench --verbs system --plugin {} --dev1 3 {ENDS_EARLY}", loopback().display());
    invalid(run(&line, &[]), &["rank 1: Loopback has no device 3: it found 1"]);
}

/// `ferrite compare` of this plugin with a stand-in for NCCL; the folder has the report.
fn compare(plugin: &Path, line: &str) -> ((i32, String, String), Scratch) {
    let folder = Scratch::new();
    let (nccl, report) = (fake_nccl(), folder.display());
    let sides = format!("--nccl {} --plugin {}", nccl.display(), plugin.display());
    (
        run(&format!("compare {sides} --verbs system --timeout 30 --report {report} {line}"), &[]),
        folder,
    )
}

/// `ferrite compare` of the loopback with itself.
fn compare_with_itself(line: &str) -> (i32, String, String) {
    let (plugin, report) = (loopback(), Scratch::new());
    let (plugin, report) = (plugin.display(), report.display());
    let sides = format!("--against {plugin} --plugin {plugin} --verbs system --sizes 8");
    run(&format!("compare {sides} --connections 2 --report {report} {line}"), &[])
}

#[test]
fn a_comparison_writes_its_report() {
    let ((code, stdout, stderr), folder) = compare(&loopback(), FAST);
    assert_eq!(code, 3, "{stdout}{stderr}");
    assert!(stdout.starts_with("UNDECIDED in 5 of 5 groups; worse nowhere\n"), "{stdout}");
    for words in [
        "A = NCCL 2.21.5 built in, B = Loopback 0.0.1, loop0 to loop0",
        "messages right; ",
        "\n  latency          undecided: ",
        "\nDetails: ",
    ] {
        assert!(stdout.contains(words), "{words:?} is missing: {stdout}");
    }
    // The path of the report may be longer.
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines.len() <= 9 && lines.iter().rev().skip(1).all(|line| line.chars().count() <= 80));
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it was written");
    let record: Record = serde_json::from_str(&read("raw.json")).expect("it is a record");
    assert_eq!((record.schema.as_str(), record.complete), ("ferrite-run/3", true));
    assert_eq!(record.sets.len(), 1);
    for metric in Metric::ALL {
        let row =
            record.rows.iter().find(|row| row.key.metric == *metric).expect("it was measured");
        assert!(row.judgement.ratio.is_some_and(|ratio| ratio.median > 0.0), "{row:?}");
        let turns = record.sets[0].turns.iter().find(|turns| turns.key == row.key);
        let turns = turns.expect("each set has it");
        let count = |side| turns.order.bytes().filter(|letter| *letter == side).count();
        assert_eq!((count(b'A'), count(b'A') + count(b'B')), (count(b'B'), turns.values.len()));
    }
    assert_eq!(record.sides[1].sha256.len(), 64);
    let page = read("report.md");
    assert!(
        page.starts_with("# Loopback 0.0.1 against NCCL 2.21.5 built in\n\n**UNDECIDED in 5 of 5"),
        "{page}"
    );
    assert!(page.contains("| row | unit | A | B | B/A [interval] | sets | B is |"), "{page}");
    assert!(page.contains(&format!("made by ferrite {}", record.tool)), "{page}");
    let (svg, html) = (read("report.svg"), read("report.html"));
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    assert!(!svg.contains("NaN"), "a value has no place");
    assert!(html.contains(svg.trim_end()), "the page has the picture in it");
    for words in [record.machine.host.as_str(), "UTC", "UNDECIDED in 5 of 5 groups"] {
        assert!(svg.contains(words), "{words:?} is missing: {svg}");
    }
}

/// One file twice, which the loader would take for one library.
#[test]
fn a_library_is_compared_with_itself_and_nothing_is_claimed() {
    let (code, stdout, stderr) = compare_with_itself("--sets 4 --seconds 600");
    assert!(code == 0 || code == 3, "{stdout}{stderr}");
    assert!(stdout.contains("A = B = Loopback 0.0.1, the same file"), "{stdout}");
    assert!(!stdout.contains("WORSE") && !stdout.contains("BETTER"), "{stdout}");
}

/// A transport may read a variable for the first time when it sends.
#[test]
fn a_variable_of_one_side_is_there_in_each_call_of_this_side_and_in_no_other() {
    let line = "--set-a LOOPBACK_SIDE=a --set-b LOOPBACK_SIDE=b --sets 3 --seconds 600";
    let (code, stdout, stderr) = compare_with_itself(line);
    assert!(code == 0 || code == 3, "{stdout}{stderr}");
}

/// What goes wrong with one side is told with its name, and with what was measured until then.
#[test]
fn the_side_that_fails_is_named() {
    let folder = Scratch::new();
    let text_file = folder.join("text.so");
    std::fs::write(&text_file, "no library").expect("it can be written");
    for (plugin, words) in [
        (Path::new("/no/such.so"), "B = /no/such.so: cannot open"),
        (text_file.as_path(), "text.so: cannot load "),
    ] {
        let outcome = compare(plugin, ENDS_EARLY).0;
        invalid(outcome, &[words]);
    }
    let cuda = shared_object("loopback", &["-DNEEDS_CUDA"]);
    invalid(
        compare(&cuda, ENDS_EARLY).0,
        &["ferrite: B = ", "undefined symbol: cudaGetDeviceCount; it expects the CUDA runtime"],
    );
    for (fault, words) in
        [("none", "Loopback found no device"), ("init", "Loopback: init returned 2")]
    {
        let line = format!("{ENDS_EARLY} --set-b LOOPBACK_FAULT={fault}");
        invalid(compare(&loopback(), &line).0, &["ferrite: B = ", words]);
    }
}

/// It dies after some sets: what was measured until then is reported.
#[test]
fn a_side_that_dies_in_the_middle_leaves_a_report() {
    let counted = Scratch::new();
    let count = counted.join("count");
    let sets = format!("--set-b LOOPBACK_FAULT=late --set-b LOOPBACK_FILE={}", count.display());
    let ((code, stdout, stderr), folder) = compare(&loopback(), &format!("{ENDS_EARLY} {sets}"));
    assert_eq!(code, 2, "{stdout}{stderr}");
    assert!(stdout.starts_with("ENDED EARLY; until then: "), "{stdout}");
    for words in ["ferrite: B = ", "SIGKILL", "measured until then: "] {
        assert!(stderr.contains(words), "{words:?} is missing: {stderr}");
    }
    let raw = std::fs::read_to_string(folder.join("raw.json")).expect("it was written");
    let record: Record = serde_json::from_str(&raw).expect("it is a record");
    assert!(!record.complete && record.problem.is_some() && !record.sets.is_empty());
}

/// One that is slower than the time that was given.
#[test]
fn a_side_that_is_too_slow_is_named() {
    let (slow, plugin) = (shared_object("loopback", &["-DSLOW=1000000"]), loopback());
    let (slow, plugin, report) = (slow.display(), plugin.display(), Scratch::new());
    let line = format!(
        "compare --against {slow} --plugin {plugin} --verbs system --seconds 1 --report {}",
        report.display()
    );
    invalid(run(&line, &[]), &["ferrite: A = ", "the time was over"]);
}

#[test]
fn a_plugin_that_is_replaced_during_the_run_is_refused() {
    let folder = Scratch::new();
    let plugin = folder.join("libplugin.so");
    std::fs::copy(loopback(), &plugin).expect("it can be copied");
    let file = text(&plugin);
    let env = [("LOOPBACK_FAULT", "grow"), ("LOOPBACK_FILE", file)];
    let outcome = run(&format!("bench --verbs system --plugin {file} {FAST}"), &env);
    invalid(outcome, &["was replaced during the run"]);
}

/// As a probe it must not take a process that has nothing to do with Ferrite for a healthy one.
#[test]
fn what_cannot_be_asked_for_its_waits_is_not_valid() {
    let own = std::process::id().to_string();
    let folder = Scratch::new();
    let place = folder.path().to_str().expect("it is text");
    let env = [("FERRITE_STATS_DIR", place), ("FERRITE_REPORT_DIR", place)];
    for (target, words) in [
        (own.as_str(), "has no connection of Ferrite that can be seen from here"),
        ("all", "no process"),
        ("4194305", "process 4194305 has ended or never existed"),
    ] {
        invalid(ferrite(&["hang", target], &env), &[words]);
    }
}

/// A `python3` that notes its calls in `calls` and fails, and an environment in which it is the one
/// that is found and no NCCL is there.
fn refused(line: &str) -> (i32, String, String) {
    let folder = Scratch::new();
    let python = folder.join("python3");
    let calls = folder.join("calls");
    std::fs::write(&python, format!("#!/bin/sh\necho called >> {}\nexit 1\n", calls.display()))
        .expect("it is written");
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755))
        .expect("it can be run");
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let cache = folder.join("cache");
    let env = [("PATH", path.as_str()), ("XDG_CACHE_HOME", text(&cache)), ("FERRITE_NCCL", "")];
    let (code, stdout, stderr) = run(line, &env);
    assert!(!calls.exists(), "{line} fetches: {stderr}");
    (code, stdout, stderr)
}

#[test]
fn a_missing_plugin_is_told_before_anything_is_fetched() {
    for of_plugin in
        ["compare --plugin", "bench --loader", "verify --loader", "check --loader", "solo --loader"]
    {
        let (code, stdout, stderr) =
            refused(&format!("{of_plugin} /no/such/plugin.so --verbs system"));
        assert_eq!((code, stdout.as_str()), (2, ""), "{of_plugin}");
        assert!(stderr.contains("cannot open /no/such/plugin.so"), "{of_plugin}: {stderr}");
    }
}

#[test]
fn a_file_that_is_no_plugin_is_told_before_anything_is_fetched() {
    let nccl = fake_nccl();
    let (nccl, plugin) = (text(&nccl), loopback());
    for sides in [nccl.to_owned(), format!("{} --baseline {nccl}", plugin.display())] {
        let (code, _, stderr) = refused(&format!("compare --verbs system --plugin {sides}"));
        assert!(code == 2 && stderr.contains("it is not an NCCL network plugin"), "{stderr}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_told_first() {
    let plugin = loopback();
    let plugin = text(&plugin);
    let (code, stdout, stderr) =
        refused(&format!("compare --verbs system --plugin {plugin} --report /dev/null/report"));
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(
        stderr.contains("cannot create /dev/null/report; --report names another folder: "),
        "{stderr}"
    );
    // The folder is there, and one of the files cannot be.
    let folder = Scratch::new();
    std::fs::create_dir_all(folder.join("report.svg")).expect("a folder can be made");
    let report = folder.display();
    let (code, stdout, stderr) =
        refused(&format!("bench --verbs system --plugin {plugin} --report {report}"));
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains("report.svg: Is a directory"), "{stderr}");
    let left: Vec<_> =
        std::fs::read_dir(&folder).expect("it is there").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["report.svg"], "trying leaves files");
}

#[test]
fn results_of_checks_that_cannot_be_written_are_told_first() {
    let plugin = loopback();
    for option in ["--junit", "--json"] {
        let plugin = plugin.display();
        let (code, stdout, stderr) =
            refused(&format!("check --verbs system --plugin {plugin} {option} /dev/null/results"));
        assert_eq!((code, stdout.as_str()), (2, ""), "{option}");
        assert!(stderr.contains("cannot write /dev/null/results"), "{stderr}");
    }
}

#[test]
fn an_existing_result_file_is_kept_if_the_arguments_are_wrong() {
    let folder = Scratch::new();
    let file = folder.join("results.xml");
    std::fs::write(&file, "of yesterday").expect("it can be written");
    let junit = file.display();
    let (code, ..) =
        refused(&format!("check --verbs system --plugin /no/such/plugin.so --junit {junit}"));
    assert_eq!(
        (code, std::fs::read_to_string(&file).expect("it is there").as_str()),
        (2, "of yesterday")
    );
}

/// PyTorch has brought it: in a container nothing of some hundred megabytes is fetched once more.
#[test]
fn a_release_that_python_has_here_is_not_fetched() {
    let machine = Scratch::new();
    let [bin, cache, home] = ["bin", "cache", "home"].map(|name| machine.join(name));
    let library = machine.join("lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2");
    for folder in [bin.as_path(), library.parent().expect("a folder")] {
        std::fs::create_dir_all(folder).expect("a folder");
    }
    std::fs::write(bin.join("python3"), "#!/bin/sh\nexit 1\n").expect("written");
    std::fs::set_permissions(bin.join("python3"), std::fs::Permissions::from_mode(0o755))
        .expect("it can be run");
    // The text is where the doctor reads the version.
    let mut bytes = std::fs::read(fake_nccl()).expect("it is there");
    bytes.extend(b"NCCL version 2.21.5\0");
    std::fs::write(&library, bytes).expect("written");
    let env = [
        ("PATH", text(&bin)),
        ("HOME", text(&home)),
        ("XDG_CACHE_HOME", text(&cache)),
        ("FERRITE_NCCL", ""),
        ("LD_LIBRARY_PATH", ""),
        ("PYTHONPATH", ""),
        ("VIRTUAL_ENV", ""),
        ("CONDA_PREFIX", ""),
    ];
    for arguments in [&["wheel"][..], &["wheel", "2.21.5"]] {
        let (code, stdout, stderr) = ferrite(arguments, &env);
        assert_eq!((code, stdout.trim_end()), (0, text(&library)), "{stderr}");
    }
    let (code, _, stderr) = ferrite(&["wheel", "2.28.9"], &env);
    assert!(
        code == 2 && stderr.contains("could not fetch"),
        "another release is not that one: {stderr}"
    );
}

/// As `compare` and `cost`: without a word about the transport it is the plugin beside the program.
#[test]
fn the_plugin_beside_the_program_is_taken_where_none_is_named() {
    let dist = Scratch::new();
    for command in ["bench", "verify", "check", "solo", "outlast"] {
        let more: &[&str] = if command == "outlast" { &["--scenario", "random"] } else { &[] };
        let (code, stdout, stderr) =
            ferrite(&[&[command], more].concat(), &[("FERRITE_DIST", text(&dist))]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{command}: {stderr}");
        let missing = ["lib/libnccl-net.so", "softrnic"].iter().any(|part| stderr.contains(part));
        assert!(missing && !stderr.contains("required"), "{command}: {stderr}");
    }
}

#[test]
fn a_full_disk_behind_stdout_ends_with_2() {
    let plugin = loopback();
    let verify =
        format!("verify --verbs system --over single --long 10 --plugin {}", text(&plugin));
    for line in [verify.as_str(), "--help", "--version", "check --list"] {
        let output = Command::new(env!("CARGO_BIN_EXE_ferrite"))
            .args(words(line))
            .stdout(File::options().write(true).open("/dev/full").expect("it is there"))
            .output()
            .expect("the tool can be started");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(
            stderr.contains("cannot write to stdout: No space left on device"),
            "{line}: {stderr}"
        );
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn a_report_is_written_although_stdout_is_full() {
    let (folder, plugin) = (Scratch::new(), loopback());
    let output = Command::new(env!("CARGO_BIN_EXE_ferrite"))
        .args(words(&format!(
            "bench --verbs system {FAST} --plugin {} --report {}",
            text(&plugin),
            text(&folder)
        )))
        .stdout(File::options().write(true).open("/dev/full").expect("it is there"))
        .output()
        .expect("the tool can be started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("cannot write to stdout"), "{stderr}");
    for file in ["raw.json", "report.md", "report.svg", "report.html"] {
        assert!(folder.join(file).exists(), "{file}");
    }
}

#[test]
fn a_failed_check_ends_with_1() {
    let line = format!("check --verbs system --only init-again --plugin {}", loopback().display());
    let (code, stdout, stderr) = run(&line, &[("LOOPBACK_FAULT", "init")]);
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(
        stderr.contains("1 of the checks that were named failed") && !stderr.contains("invalid"),
        "{stderr}"
    );
}

/// Starts the tool with a variable of its own, waits until `enough` lines of its stderr have the
/// words, interrupts it, and returns how it ended, its stdout and the rest of its stderr. None of
/// its processes may be left.
fn interrupted(line: &str, said: &str, enough: usize) -> (Option<i32>, String, String) {
    let (mark, folder) = (unique_name("interrupted"), Scratch::new());
    let mut child = Command::new(env!("CARGO_BIN_EXE_ferrite"))
        .args(words(line))
        .current_dir(folder.path())
        .env("RUST_LOG", "debug")
        .env("FERRITE_INTERRUPTED_TEST", &mark)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool can be started");
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped"))
        .lines()
        .map_while(|line| line.ok());
    let seen = lines.by_ref().filter(|line| line.contains(said)).take(enough).count();
    assert_eq!(seen, enough, "it ended by itself");
    // SAFETY: a signal to the child, which has not been waited for.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
    let rest: Vec<String> = lines.collect();
    let mut stdout = String::new();
    child.stdout.take().expect("it is piped").read_to_string(&mut stdout).expect("it is text");
    let status = child.wait().expect("it ends");
    let marked = |entry: &std::fs::DirEntry| {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|bytes| bytes == mark.as_bytes())
    };
    let left: Vec<_> =
        std::fs::read_dir("/proc").expect("it is there").flatten().filter(marked).collect();
    assert!(left.is_empty(), "processes are left: {left:?}");
    (status.code(), stdout, rest.join("\n"))
}

#[test]
fn an_interrupted_comparison_reports_what_it_has() {
    let (folder, nccl, plugin) = (Scratch::new(), fake_nccl(), loopback());
    let line = format!(
        "compare --verbs system --nccl {} --plugin {} --sizes 8 --seconds 600 --report {}",
        text(&nccl),
        text(&plugin),
        text(&folder)
    );
    // Two pairs verify; the third set is the fifth; each has two processes, of which each says this
    // for each side.
    let (code, stdout, stderr) = interrupted(&line, "Loopback 0.0.1", 4 + 3 * 4);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stdout.starts_with("INTERRUPTED; until then: UNDECIDED in 5 of 5 groups"), "{stdout}");
    assert!(stderr.ends_with("ferrite: interrupted"), "{stderr}");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it was written");
    let record: Record = serde_json::from_str(&read("raw.json")).expect("it is a record");
    assert!(!record.complete && record.sets.len() >= 2, "{} sets", record.sets.len());
    assert!(read("report.md").contains("**INTERRUPTED; until then: "), "{}", read("report.md"));
}

#[test]
fn an_interrupt_before_any_result_is_told_in_one_line() {
    let (folder, plugin) = (Scratch::new(), loopback());
    let (plugin, report) = (plugin.display(), folder.display());
    let line = format!("bench --verbs system --plugin {plugin} --report {report}");
    let (code, stdout, stderr) = interrupted(&line, "Loopback 0.0.1", 1);
    assert_eq!((code, stdout.as_str()), (Some(130), ""), "{stderr}");
    assert!(stderr.ends_with("ferrite: interrupted"), "{stderr}");
    assert_eq!(std::fs::read_dir(&folder).expect("it is there").count(), 0);
}

/// A folder with a `python3` that is this shell script.
fn python(folder: &Path, script: &str) -> PathBuf {
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).expect("a folder can be made");
    let path = bin.join("python3");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("it can be written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it can be run");
    bin
}

/// `ferrite wheel` with that python3 alone on the path and an empty cache.
fn wheel(folder: &Path, path: &Path) -> (i32, String, String) {
    let cache = folder.join("cache");
    let environment = [
        ("PATH", format!("{}:/usr/bin:/bin", path.display())),
        ("XDG_CACHE_HOME", cache.display().to_string()),
        ("FERRITE_NCCL", String::new()),
    ];
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    ferrite(&["wheel"], &environment)
}

/// A python3 that "downloads" and "unpacks" the given library, and counts its calls.
fn good_python(folder: &Path, library: &Path) -> PathBuf {
    let script = format!(
        r#"echo "$@" >> {log}
case "$2" in
pip) while [ "$1" != --dest ]; do shift; done; touch "$2/nvidia_nccl_cu12-2.21.5.whl" ;;
zipfile) mkdir -p "$5/nvidia/nccl/lib" && cp {library} "$5/nvidia/nccl/lib/libnccl.so.2" ;;
esac"#,
        log = folder.join("calls").display(),
        library = library.display()
    );
    python(folder, &script.replace("\"$5/", "\"${5}/"))
}

#[test]
fn the_library_is_fetched_once_and_verified() {
    let folder = Scratch::new();
    let bin = good_python(&folder, &fake_nccl());
    let (code, stdout, stderr) = wheel(&folder, &bin);
    let cached = folder.join("cache/ferrite/nccl-2.21.5/libnccl.so.2");
    assert_eq!((code, stdout.trim()), (0, cached.to_str().expect("it is text")), "{stderr}");
    let left: Vec<_> =
        std::fs::read_dir(cached.parent().expect("it has one")).expect("it is there").collect();
    assert_eq!(left.len(), 1, "scratch files were left: {left:?}");
    assert_eq!(wheel(&folder, &bin).0, 0);
    let calls = std::fs::read_to_string(folder.join("calls")).expect("python3 was called");
    assert_eq!(calls.lines().count(), 2, "{calls}");
    assert!(calls.contains("nvidia-nccl-cu12==2.21.5"), "{calls}");
}

#[test]
fn a_wrong_download_does_not_reach_the_cache() {
    let folder = Scratch::new();
    let other = shared_object("loopback", &["-DAS_NCCL=21903", "-DVTABLE_NAME=\"IB\""]);
    let (code, _, stderr) = wheel(&folder, &good_python(&folder, &other));
    assert_eq!(code, 2);
    assert!(stderr.contains("is NCCL 2.19.3; known are"), "{stderr}");
    assert!(!folder.join("cache/ferrite/nccl-2.21.5/libnccl.so.2").exists());
}

#[test]
fn a_failing_pip_is_quoted_with_the_way_out() {
    let folder = Scratch::new();
    let script = "for i in $(seq 0 19); do echo \"line $i\"; done; echo 'ERROR: no route to the index' >&2; exit 1";
    let (code, stdout, stderr) = wheel(&folder, &python(&folder, script));
    assert_eq!((code, stdout.as_str()), (2, ""));
    for words in [
        "could not fetch libnccl.so.2 of NCCL 2.21.5",
        "ERROR: no route to the index",
        "line 19",
        "--nccl PATH",
        "FERRITE_NCCL",
    ] {
        assert!(stderr.contains(words), "{words} is missing: {stderr}");
    }
    assert!(!stderr.contains("line 3\n"), "too much: {stderr}");
}

#[test]
fn a_missing_python_is_named() {
    let folder = Scratch::new();
    let cache = folder.join("cache").display().to_string();
    let environment =
        [("PATH", "/nonexistent"), ("XDG_CACHE_HOME", cache.as_str()), ("FERRITE_NCCL", "")];
    let (code, _, stderr) = ferrite(&["wheel"], &environment);
    assert_eq!(code, 2);
    assert!(stderr.contains("python3 did not start"), "{stderr}");
}

#[test]
fn a_named_file_wins_and_is_verified() {
    let good = fake_nccl().display().to_string();
    let (code, stdout, _) = ferrite(&["wheel"], &[("FERRITE_NCCL", good.as_str())]);
    assert_eq!((code, stdout.trim()), (0, good.as_str()));
    let (code, _, stderr) =
        ferrite(&["wheel", "--nccl", "/no/such/libnccl.so.2"], &[("FERRITE_NCCL", good.as_str())]);
    assert_eq!(code, 2);
    assert!(stderr.contains("/no/such/libnccl.so.2"), "{stderr}");
}

#[test]
fn a_broken_cache_says_what_to_delete() {
    let folder = Scratch::new();
    let cache = folder.join("cache/ferrite/nccl-2.21.5");
    std::fs::create_dir_all(&cache).expect("a folder can be made");
    std::fs::write(cache.join("libnccl.so.2"), "half a file").expect("it can be written");
    let (code, _, stderr) = wheel(&folder, Path::new("/nonexistent"));
    assert_eq!(code, 2);
    assert!(stderr.contains("delete it to have it fetched again"), "{stderr}");
}

/// The subcommands that the help lists.
fn listed() -> Vec<String> {
    let (_, help, _) = ferrite(&["--help"], &[]);
    let commands = help
        .split("Commands:\n")
        .nth(1)
        .expect("it lists them")
        .split("\n\n")
        .next()
        .unwrap_or_default();
    let names = commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<String> =
        names.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect();
    assert!(names.len() > 15 && names.contains(&"doctor".to_owned()), "{names:?}");
    names
}

fn script(shell: &str) -> String {
    let (code, script, stderr) = ferrite(&["completions", shell], &[]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    script
}

/// What bash offers for the last of these words.
fn offered(folder: &Path, words: &[&str]) -> Vec<String> {
    let file = folder.join("ferrite");
    std::fs::write(&file, script("bash")).expect("it can be written");
    let complete = r#"
        set -e
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        function=$(complete -p ferrite | sed 's/.*-F \([^ ]*\).*/\1/')
        "$function" ferrite "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", complete, "bash"]).arg(&file).args(words);
    program::stdout_of(&mut command).lines().map(str::to_owned).collect()
}

#[test]
fn each_listed_command_has_a_man_page_and_no_other_has() {
    let folder = Scratch::new();
    let (code, stdout, stderr) =
        ferrite(&["man", folder.join("new/man1").to_str().expect("it is text")], &[]);
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "", ""));
    let entries = std::fs::read_dir(folder.join("new/man1")).expect("it was made").flatten();
    let mut found: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let mut wanted: Vec<String> =
        listed().iter().filter(|name| *name != "help").map(|n| format!("ferrite-{n}.1")).collect();
    wanted.push("ferrite.1".to_owned());
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
    let page =
        std::fs::read_to_string(folder.join("new/man1/ferrite-paths.1")).expect("it was made");
    for words in ["\\-\\-interval", "FERRITE_STATS_DIR", "Exit code 0: shown"] {
        assert!(page.contains(words), "{words} is missing: {page}");
    }
}

#[test]
fn bash_completes_commands_options_and_values() {
    let folder = Scratch::new();
    assert_eq!(offered(&folder, &["ferrite", "do"]), ["doctor"]);
    let mut all = offered(&folder, &["ferrite", ""]);
    all.retain(|word| !word.starts_with('-'));
    assert_eq!(all, listed());
    assert_eq!(offered(&folder, &["ferrite", "paths", "--int"]), ["--interval"]);
    assert_eq!(
        offered(&folder, &["ferrite", "completions", ""]),
        ["-h", "--help", "bash", "zsh", "fish"]
    );
}

#[test]
fn a_folder_or_a_page_that_cannot_be_written_is_named() {
    let folder = Scratch::new();
    let file = folder.write("file", "");
    let below = file.join("man1");
    let (code, _, stderr) = ferrite(&["man", below.to_str().expect("it is text")], &[]);
    assert_eq!(code, 2, "{stderr}");
    assert!(
        stderr.contains(&format!("cannot write {}: Not a directory", below.display())),
        "{stderr}"
    );
    std::fs::create_dir(folder.join("ferrite-doctor.1")).expect("a folder can be made");
    let (code, _, stderr) = ferrite(&["man", folder.to_str().expect("it is text")], &[]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("ferrite-doctor.1: Is a directory"), "{stderr}");
}
