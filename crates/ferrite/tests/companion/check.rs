//! `ferrite check`: that it names what is wrong, and that Ferrite passes.

use crate::common::{self, dist, ferrite, shared_object};
use std::path::Path;
use testkit::cases;
use testkit::{Missing, Scratch, require};

/// What a plugin may do wrong (`tests/fixtures/misdeed.c`), the checks that notice, and words of
/// what they say.
const MISDEEDS: &[(&str, &str, &str)] = &[
    ("name", "3", "is the name of a network of NCCL's own"),
    ("open", "4", "files and threads before"),
    ("init-once", "5", "a second init changes the devices or fails"),
    ("always-one", "2", "there are 1 devices"),
    ("always-one", "6", "1 devices where there should be none"),
    ("format", "7", ""),
    ("mute", "7", "the value of NCCL_SOCKET_FAMILY is not told"),
    ("unwritten", "8", "byte 40 of the properties of device 0 is not written"),
    ("new-names", "9", "the name of device 0 was"),
    ("speed", "10", "speed_mbps of device 0 is 400001"),
    ("cuda", "11", "GPU memory is promised where the device takes none"),
    ("one-comm", "12", "isend returned 3"),
    ("pointer", "13", "an address of this process"),
    ("overrun", "13", "past the 128 bytes"),
    ("wait", "14", "in each of three rounds"),
    ("device-handle", "15", "has written a device handle"),
    ("early", "16", "although nobody has accepted yet"),
    ("early-accept", "17", "before connect gave it anything"),
    ("close-listen", "19", "closeListen returned 2"),
    ("no-self", "20", "connect returned 2"),
    ("no-self", "25", "connect returned 2"),
    ("keep", "28", "memory regions on the device, not"),
    ("keep", "29", "memory regions on the device, not"),
    ("keep", "33", "memory regions on the device, not"),
    ("any-file", "31", "is no dma-buf, and regMrDmaBuf succeeds"),
    ("garbage", "35", "leaves garbage in the place of the request"),
    ("last-byte", "36", "byte 4096 of 4097 is"),
    ("past", "37", "bytes are written behind byte"),
    ("sent-all", "37", "the send says"),
    ("swap", "38", "group of 2"),
    ("eight-sizes", "39", "more sizes than there are messages"),
    ("wrap", "41", "message 65536 arrives as"),
    ("grow", "42", "a million tests take"),
    ("too-soon", "43", "before its message was sent"),
    ("torn", "44", "has its flag, and not its word"),
    ("last-byte", "45", "offset 4096: expected"),
    ("one-thread", "47", "isend returned 3"),
    ("slots", "48", "getDeviceMr is not NULL"),
    ("slow-close", "51", "closing takes 3"),
    ("last-byte", "52", "byte 69999 of 70000"),
    ("slow-close", "53", "an abort "),
    ("mute", "55", "is not logged with the device"),
    ("last-byte", "56", "byte 49999 of 50000"),
    ("leak", "57", "files and threads before"),
];

const PARTS: [&str; 3] = ["softrnic/libibverbs.so.1", "bin/softrnic", "lib/libnccl-net.so"];

/// Runs `ferrite check` with `words` on the plugin in `dist`, wrapped so that it does `misdeed`.
fn with(dist: &Path, misdeed: &str, words: &[&str]) -> (i32, String) {
    let wrong = shared_object("misdeed", &["-ldl", "-lpthread"]);
    let plugin = std::fs::canonicalize(dist.join(PARTS[2])).expect("it is there");
    let text = |path: &Path| path.to_str().expect("it is text").to_owned();
    let (wrong, plugin, folder) = (text(&wrong), text(&plugin), text(dist));
    let mut arguments = vec!["check", "--plugin", &wrong];
    arguments.extend(words);
    let env = [
        ("FERRITE_DIST", folder.as_str()),
        ("MISDEED", misdeed),
        ("MISDEED_PLUGIN", plugin.as_str()),
    ];
    let (code, stdout, _) = ferrite(&arguments, &env);
    (code, stdout)
}

/// A quarter of them, so that a runner with a process for each test tries several at once.
fn noticed_and_named(quarter: usize) {
    let dist = require!(dist(&PARTS));
    let mut unnoticed = Vec::new();
    for (misdeed, number, words) in MISDEEDS.iter().skip(quarter).step_by(4) {
        let (code, stdout) = with(&dist, misdeed, &["--only", number]);
        let line = stdout.lines().next().unwrap_or_default();
        if code != 1 || !line.contains("  FAIL  ") || !stdout.contains(words) {
            unnoticed.push(format!("{misdeed}: code {code}, {}", stdout.trim()));
        }
    }
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}

cases! { ();
    each_planted_defect_fails_its_check_1_of_4 => noticed_and_named(0);
    each_planted_defect_fails_its_check_2_of_4 => noticed_and_named(1);
    each_planted_defect_fails_its_check_3_of_4 => noticed_and_named(2);
    each_planted_defect_fails_its_check_4_of_4 => noticed_and_named(3);
}

#[test]
fn results_are_written_for_programs() {
    let dist = require!(dist(&PARTS));
    let folder = Scratch::new();
    let (junit, json) = (folder.join("junit.xml"), folder.join("check.json"));
    let files = ["--junit", junit.to_str().expect("text"), "--json", json.to_str().expect("text")];
    let (code, stdout) = with(&dist, "", &[&["--only", "abi-layout,46"][..], &files[..]].concat());
    assert_eq!(code, 0, "{stdout}");
    assert!(
        stdout.contains(" 1  abi-layout                  pass  ncclNetPlugin_v8: 152 bytes"),
        "{stdout}"
    );
    assert!(stdout.contains(": 2 checks, 1 passed, 0 failed, 1 skipped, "), "{stdout}");
    let xml = std::fs::read_to_string(&junit).expect("it was written");
    assert!(xml.contains("tests=\"2\" failures=\"0\" skipped=\"1\""), "{xml}");
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("it was written"))
            .expect("JSON");
    assert_eq!(
        (json["passed"].as_u64(), json["checks"][1]["verdict"].as_str()),
        (Some(1), Some("skipped"))
    );
}

#[test]
fn parallel_checks_are_reported_in_order() {
    let dist = require!(dist(&PARTS));
    let (code, stdout) = with(&dist, "", &["--jobs", "4", "--only", "1,2,3,5,11,13,46,48,59"]);
    assert_eq!(code, 0, "{stdout}");
    let numbers: Vec<&str> =
        stdout.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(numbers[..9], ["1", "2", "3", "5", "11", "13", "46", "48", "59"], "{stdout}");
    assert!(stdout.contains(": 9 checks, "), "{stdout}");
}

#[test]
fn checks_are_listed_without_a_transport_and_an_unknown_number_is_named() {
    let (code, stdout, stderr) = ferrite(&["check", "--list"], &[]);
    assert_eq!((code, stdout.lines().count()), (0, 65), "{stderr}");
    let (code, _, stderr) = ferrite(&["check", "--stock", "--only", "66"], &[]);
    assert!(code == 2 && stderr.contains("there is no check 66"), "{stderr}");
}

/// A few checks of Ferrite on devices as each driver with reliable connections has them;
/// scripts/nightly.sh makes all. What the devices refuse is in softrnic/docs/cards.md.
#[test]
fn ferrite_keeps_some_of_the_contract_on_the_devices_of_each_driver() {
    let dist = require!(dist(&PARTS));
    let (plugin, folder) = (dist.join(PARTS[2]), dist.to_str().expect("it is text"));
    let words =
        ["check", "--plugin", plugin.to_str().expect("it is text"), "--only", "9,13,26,28,39,48"];
    for driver in ["bnxt_re", "erdma", "hns", "ionic", "irdma", "mana", "mlx5", "rxe"] {
        let (code, stdout, stderr) =
            ferrite(&words, &[("FERRITE_DIST", folder), ("SOFTRNIC_DRIVER", driver)]);
        assert!(
            code == 0 && stdout.contains(": 6 checks, 6 passed, "),
            "{driver}: {stdout}{stderr}"
        );
    }
}

/// Those points that have to do with it; scripts/nightly.sh makes all, also with one setting at a
/// time.
#[test]
fn ferrite_keeps_some_of_the_contract_on_devices_with_all_that_cards_and_kernels_do_otherwise() {
    let dist = require!(dist(&PARTS));
    let (plugin, folder) = (dist.join(PARTS[2]), dist.to_str().expect("it is text"));
    let numbers = "23,26,37,38,45,49,52,54,55,57";
    let words =
        ["check", "--strict", "--plugin", plugin.to_str().expect("it is text"), "--only", numbers];
    let env = [&[("FERRITE_DIST", folder)], &common::OTHERWISE[..]].concat();
    let (code, stdout, stderr) = ferrite(&words, &env);
    assert!(code == 0 && stdout.contains(": 10 checks, 10 passed, "), "{stdout}{stderr}");
}

/// Ferrite itself, with these arguments; nothing may fail. What needs a GPU is not tried: that is
/// known, and no news.
fn ferrite_passes(words: &[&str]) {
    let dist = require!(dist(&PARTS));
    let plugin = dist.join(PARTS[2]);
    let mut arguments = vec!["check", "--strict", "--plugin", plugin.to_str().expect("it is text")];
    arguments.extend(words);
    let (code, stdout, stderr) =
        ferrite(&arguments, &[("FERRITE_DIST", dist.to_str().expect("it is text"))]);
    let failed: Vec<&str> =
        stdout.lines().filter(|line| line.contains("  FAIL  ") || line.contains("| ")).collect();
    assert_eq!(
        code,
        0,
        "{}\n{}\n{stderr}",
        failed.join("\n"),
        stdout.lines().last().unwrap_or_default()
    );
}

#[test]
fn ferrite_keeps_the_contract_over_roce() {
    ferrite_passes(&["--link", "roce"]);
}

/// What the link layer has to do with.
const LINKED: &str =
    "6,8,10,12,14,16,18,20,23,25,26,36,37,38,40,43,44,45,47,49,50,51,52,53,54,55,57,60";

cases! { ();
    ferrite_keeps_the_contract_over_infiniband =>
        ferrite_passes(&["--link", "ib", "--only", LINKED]);
    ferrite_keeps_the_contract_over_two_rails_of_roce =>
        ferrite_passes(&["--link", "roce", "--rails", "2"]);
    ferrite_keeps_the_contract_over_two_rails_of_infiniband =>
        ferrite_passes(&["--link", "ib", "--rails", "2", "--only", LINKED]);
}

/// The lines of `ferrite check --one-sided` with `words`, of the transport built into `release`.
fn one_sided(release: &str, words: &[&str], env: &[(&str, &str)]) -> Result<String, Missing> {
    let dist = dist(&PARTS)?;
    let nccl = common::cached_nccl(release)?;
    let arguments = ["check", "--one-sided", "--stock", nccl.to_str().expect("it is text")];
    let env = [&[("FERRITE_DIST", dist.to_str().expect("it is text"))], env].concat();
    Ok(ferrite(&[&arguments, words].concat(), &env).1)
}

#[test]
fn one_sided_operations_pass_and_a_wrong_byte_is_named() {
    let stdout = require!(one_sided("2.32.3", &["--only", "signal,many,follows"], &[]));
    assert!(stdout.contains(": 3 checks, 3 passed, "), "{stdout}");
    // What makes the connections ready is shorter.
    let faults = [("SOFTRNIC_FAULTS", "corrupt opcode=write larger=1024")];
    let stdout = require!(one_sided("2.32.3", &["--only", "put"], &faults));
    assert!(stdout.contains(" 3  put ") && stdout.contains("  FAIL  byte "), "{stdout}");
}

/// Exactly these fail.
fn one_sided_operations_fail(release: &str, expected: &[&str]) {
    let stdout = require!(one_sided(release, &[], &[]));
    let failed: Vec<&str> =
        stdout.lines().filter(|line| line.contains("  FAIL  ")).map(|line| &line[4..]).collect();
    let is_expected = failed.len() == expected.len()
        && failed.iter().zip(expected).all(|(line, name)| line.starts_with(name));
    assert!(is_expected && stdout.contains(": 16 checks, "), "{stdout}");
}

cases! { ();
    one_sided_operations_of_nccl_2_29 => one_sided_operations_fail("2.29.7", &["four-gib"]);
    one_sided_operations_of_nccl_2_30 => one_sided_operations_fail("2.30.7", &["four-gib"]);
    one_sided_operations_of_nccl_2_31 => one_sided_operations_fail("2.31.2", &["four-gib"]);
    one_sided_operations_of_nccl_2_32 => one_sided_operations_fail("2.32.3", &["four-gib"]);
}

#[test]
fn one_sided_operations_are_those_of_nccl_2_29_and_later() {
    let (code, stdout, _) = ferrite(&["check", "--one-sided", "--list"], &[]);
    assert_eq!((code, stdout.lines().count()), (0, 16), "{stdout}");
    let dist = require!(dist(&PARTS));
    let plugin = dist.join(PARTS[2]);
    let words = ["check", "--one-sided", "--plugin", plugin.to_str().expect("it is text")];
    let (code, _, stderr) = ferrite(&words, &[("FERRITE_DIST", dist.to_str().expect("text"))]);
    assert!(code == 2 && stderr.contains("--one-sided needs --stock 2.29.7 or later"), "{stderr}");
}
