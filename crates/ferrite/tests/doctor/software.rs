//! The plugin and what is set for it.

use testkit::{dist, require};

use crate::common::loopback;
use crate::setup;

#[test]
fn loopback_fails_if_the_message_does_not_arrive_or_arrives_wrong() {
    require!(setup("loopback")).look().is("ok", &["softrnic0:1", "1 MiB arrived right"]);
    let faults =
        [("drop attempts=all", "status 12"), ("corrupt", "is wrong"), ("qp-error opcode=write-imm", "status 2")];
    for (rule, words) in faults {
        require!(setup("loopback")).softrnic("SOFTRNIC_FAULTS", rule).look().is("FAIL", &["softrnic0:1", words]);
    }
}

#[test]
fn loopback_fails_with_the_plugins_words_if_queue_pairs_cannot_be_connected() {
    let unresolved = require!(setup("loopback")).softrnic("SOFTRNIC_FAULTS", "modify-qp=ETIMEDOUT");
    unresolved.env("NCCL_IB_MQP_RETRY_CNT", "0").look().is("FAIL", &["Connection timed out", "neighbour"]);
}

#[test]
fn loopback_fails_if_the_file_is_no_plugin_and_is_unknown_without_one() {
    let file = require!(dist::softrnic_library_folder()).join("libibverbs.so.1");
    let other = require!(setup("loopback")).word("--plugin").word(file.to_str().expect("text"));
    other.look().is("FAIL", &["not an NCCL network plugin"]);
    require!(setup("loopback")).env("FERRITE_DIST", "/no/such/folder").look().is("unknown", &["no plugin at"]);
}

#[test]
fn control_fails_if_no_interface_fits_and_warns_of_loopback() {
    require!(setup("control"))
        .env("NCCL_SOCKET_IFNAME", "lo")
        .look()
        .is("warn", &["no other host", "NCCL_SOCKET_IFNAME=DEV"]);
    let some = require!(setup("control")).env("NCCL_SOCKET_IFNAME", "lo,none9").look();
    some.is("warn", &["NCCL_SOCKET_IFNAME=lo,none9: no interface that is up has a name that begins with none9"]);
    let excluded = require!(setup("control")).env("NCCL_SOCKET_IFNAME", "^none9").look();
    assert!(excluded.text.contains("\"ok\" \"\" \"NCCL_SOCKET_IFNAME=^none9: no interface"), "{}", excluded.text);
    require!(setup("control")).env("NCCL_SOCKET_IFNAME", "none9").look().is("FAIL", &["NCCL_SOCKET_IFNAME=none9"]);
}

#[test]
fn plugins_tells_which_file_nccl_takes() {
    let ours = std::fs::read(require!(dist::plugin())).expect("the plugin");
    let theirs = std::fs::read(loopback()).expect("the other plugin");
    let with = |files: &[(&str, &[u8])]| {
        files.iter().fold(setup("plugins"), |setup, (path, bytes)| setup.map(|setup| setup.file(path, bytes)))
    };
    require!(with(&[])).look().is("warn", &["takes no plugin", "NCCL_NET_PLUGIN is not set", "export NCCL_NET_PLUGIN"]);
    require!(with(&[("/usr/lib/libnccl-net.so", &ours)]))
        .look()
        .is("ok", &["NCCL 2.20 and later", "takes /usr/lib/libnccl-net.so: Ferrite", "v8 to v12"]);
    let both = [
        ("/opt/x/libnccl-net.so", &*theirs),
        ("/usr/lib/libnccl-net.so", &*ours),
        ("/etc/ld.so.conf.d/x.conf", b"/opt/x\n"),
    ];
    let both = require!(with(&both)).look();
    both.is("warn", &["takes /opt/x/libnccl-net.so, which is not Ferrite", "/usr/lib/libnccl-net.so is there as well"]);
    let two = [("/usr/lib/libnccl-net.so", &*ours), ("/lib64/libnccl-net.so", &[&ours[..], b"x"].concat())];
    let twice = require!(with(&two)).look();
    twice.is("warn", &["another copy of Ferrite (0.1.0+", "remove the copy that is not meant"]);
    let after = require!(with(&[("/usr/lib/libnccl-net-ferrite.so", &ours), ("/usr/lib/libnccl-net.so", &theirs)]));
    let after = after.env("NCCL_NET_PLUGIN", "ferrite").look();
    after.is("ok", &["Ferrite 0.1.0+", "/usr/lib/libnccl-net.so is there as well, and is not taken"]);
    let named = require!(with(&[("/opt/f.so", &ours), ("/usr/lib/libnccl-net.so", &ours)]));
    named.env("NCCL_NET_PLUGIN", "/opt/f.so").look().is("ok", &["takes /opt/f.so: Ferrite"]);
    require!(with(&[])).env("NCCL_NET_PLUGIN", "/opt/f.so").look().is("FAIL", &["/opt/f.so not found"]);
    require!(with(&[])).env("NCCL_NET_PLUGIN", "none").look().is("warn", &["takes no plugin", "NCCL_NET_PLUGIN=none"]);
    let image = require!(with(&[("/usr/lib/libnccl-net.so", &ours)])).env("NCCL_NET_PLUGIN", "spcx").look();
    image.is("FAIL", &["takes no plugin", "spcx, libnccl-net-spcx.so not found", "libnccl-net.so is there as well"]);
    let mut other_processor = ours.clone();
    other_processor[18..20].copy_from_slice(&21_u16.to_le_bytes());
    let other = require!(with(&[("/usr/lib/libnccl-net.so", &other_processor)])).look();
    other.is("warn", &["it is for another processor (ELF machine 21): install the package for "]);
    let empty = require!(with(&[("/usr/lib/libnccl-net.so", b"text")])).look();
    empty.is("warn", &["takes no plugin", "cannot be loaded"]);
    let list = || with(&[("/opt/f.so", &ours)]).map(|setup| setup.env("NCCL_NET_PLUGIN", "spcx,/opt/f.so"));
    require!(list()).look().is("warn", &["NCCL 2.20 to 2.26", "NCCL 2.27 and later", "takes /opt/f.so: Ferrite"]);
    let library = |version: &str| format!("NCCL version {version}+cuda12.4");
    require!(list())
        .file("/lib/libnccl.so.2", library("2.28.9"))
        .look()
        .is("ok", &["NCCL 2.28.9", "takes /opt/f.so: Ferrite"]);
    require!(list())
        .file("/lib/libnccl.so.2", library("2.21.5"))
        .look()
        .is("FAIL", &["NCCL 2.21.5", "takes no plugin"]);
}

#[test]
fn settings_fails_out_of_range_and_warns_of_names_without_effect() {
    require!(setup("settings")).env("NCCL_IB_TIMEOUT", "22").look().is("ok", &["each in range"]);
    require!(setup("settings")).env("NCCL_IB_TIMEOUT", "32").look().is("FAIL", &["NCCL_IB_TIMEOUT=32", "from 0 to 31"]);
    require!(setup("settings")).env("NCCL_IB_TIMOUT", "20").look().is("warn", &["NCCL_IB_TIMEOUT is meant?"]);
    require!(setup("settings")).file("/etc/nccl.conf", "NCCL_IB_TC=300\n").look().is("FAIL", &["NCCL_IB_TC=300"]);
    let precedes = require!(setup("settings")).file("/etc/nccl.conf", "NCCL_IB_TC=300\n").env("NCCL_IB_TC", "3");
    precedes.look().is("ok", &["each in range", "from the environment: NCCL_IB_TC=3"]);
}

#[test]
fn settings_names_the_file_and_the_line_of_each_value() {
    let with = |text: &str| setup("settings").map(|setup| setup.file("/etc/nccl.conf", text));
    require!(with("# site\nNCCL_IB_TC=106\n")).look().is("ok", &["NCCL_IB_TC=106, from /etc/nccl.conf, line 2"]);
    require!(with("NCCL_IB_TC=300\n")).look().is("FAIL", &["NCCL_IB_TC=300", "(from /etc/nccl.conf, line 1)"]);
    let misspelt = require!(with("\nNCCL_IB_TIMOUT=22\n")).look();
    misspelt.is("warn", &["NCCL_IB_TIMOUT=22 has no effect", "(from /etc/nccl.conf, line 2)"]);
    let own = require!(with("NCCL_IB_TC=1\n")).file("/root/.nccl.conf", "NCCL_IB_TC=2\n");
    own.look().is("ok", &["NCCL_IB_TC=2, from /root/.nccl.conf, line 1"]);
    let named = || require_named(with("NCCL_IB_SL=1\n"));
    require!(named()).look().is("ok", &["NCCL_IB_TC=3, from /site.conf, line 1", "NCCL_IB_SL=1, from /etc/nccl.conf"]);
    let absent = require!(with("")).file("/root/.nccl.conf", "NCCL_IB_TC=300\n").env("NCCL_CONF_FILE", "/absent");
    absent.look().is("ok", &["each in range"]);
    let library = |version: &str| format!("NCCL version {version}+cuda12.4");
    let old = || named().map(|setup| setup.file("/usr/lib/libnccl.so.2", library("2.21.5")));
    let alone = require!(old()).look();
    assert!(!alone.text.contains("NCCL_IB_TC=3"), "2.21.5 does not know the variable: {}", alone.text);
    let packages = "/usr/lib/python3.12/site-packages";
    let both = || old().map(|s| s.file(&format!("{packages}/nvidia/nccl/lib/libnccl.so.2"), library("2.30.7")));
    require!(both()).look().is("warn", &["NCCL_IB_TC: NCCL 2.30.7, which is here too", "3 (from /site.conf, line 1)"]);
    let torch = require!(both()).file(&format!("{packages}/torch/lib/libtorch.so"), "").look();
    torch.is("warn", &["NCCL_IB_TC=3, from /site.conf", "NCCL_IB_TC: NCCL 2.21.5, which is here too", "not set"]);
}

/// With a file that NCCL_CONF_FILE names.
fn require_named(setup: Result<crate::Setup, testkit::Missing>) -> Result<crate::Setup, testkit::Missing> {
    setup.map(|setup| setup.file("/site.conf", "NCCL_IB_TC=3\n").env("NCCL_CONF_FILE", "/site.conf"))
}

#[test]
fn settings_warns_of_what_belongs_to_a_name_or_a_value() {
    let file = |text: &str| setup("settings").map(|setup| setup.file("/etc/nccl.conf", text));
    for (line, words) in [
        ("NCCL_IB_TC = 106", "the blank belongs to the name, and NCCL_IB_TC is not set by it"),
        ("export NCCL_IB_TC=106", "the word `export` belongs to the name, and NCCL_IB_TC is not set by it"),
        ("NCCL_NET=Ferrite ", "the blank at the end or the beginning belongs to the value"),
        ("NCCL_IB_HCA=softrnic0 # both", "the comment belongs to the value"),
        ("NCCL_IB_HCA=\"softrnic0\"", "the quotation marks belong to the value"),
    ] {
        let report = require!(file(line)).look();
        report.is("warn", &[words, "/etc/nccl.conf, line 1", "write NAME=VALUE"]);
        assert_eq!(report.text.matches("\"warn\"").count(), 1, "{}", report.text);
    }
    require!(setup("settings"))
        .env("NCCL_ENV_PLUGIN", "site")
        .look()
        .is("unknown", &["NCCL_ENV_PLUGIN=site", "NCCL_DEBUG=INFO"]);
}
