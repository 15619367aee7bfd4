//! What `init` makes of the machine and the environment: a clear line and an end, never a crash.

use crate::common::prelude::*;
use lab::nccl::library::Library;
use lab::verbs::Verbs;
use testkit::skipped;

/// Initialises the plugin in a process with `env`: the code of `init`, the number of devices and
/// the log.
fn init_with(setting: Setting, env: &[(&str, &str)]) -> Result<(u32, i32, Vec<String>)> {
    let setting = env.iter().fold(setting, |setting, (name, value)| setting.env(name, value));
    let [result, _] = pair(&setting, |_| {
        let transport = Transport::without_init(Library::open(&Source::plugin(
            dist().join("lib/libnccl-net.so"),
        ))?);
        let code = match transport.init() {
            Ok(()) => 0,
            Err(Error::Call { code, .. }) => code,
            Err(other) => return Err(other),
        };
        let mut devices = -1;
        // SAFETY: a valid place for the number.
        let _ = unsafe { transport.vtable().devices.expect("a slot")(&raw mut devices) };
        Ok((code, devices, lab::nccl::debug_log::lines()))
    })?;
    Ok(result)
}

#[test]
fn a_setting_out_of_range_is_refused_by_name_value_and_range() -> Result<()> {
    let (code, devices, log) = init_with(require!(setting()), &[("NCCL_IB_TIMEOUT", "99")])?;
    assert_eq!((code, devices), (abi::ncclInvalidUsage, -1));
    assert!(
        log.iter()
            .any(|l| l.contains("NCCL_IB_TIMEOUT=99: a whole number from 0 to 31 is expected")),
        "{log:?}"
    );
    Ok(())
}

#[test]
fn settings_of_recovery_out_of_range_are_refused_by_name_value_and_range() -> Result<()> {
    for (name, value, range) in [
        ("FERRITE_FAILOVER", "2", "0 to 1"),
        ("FERRITE_STALL_MS", "-1", "0 to 60000"),
        ("FERRITE_GIVE_UP", "0", "1 to 86400"),
    ] {
        let (code, devices, log) = init_with(require!(setting()), &[(name, value)])?;
        assert_eq!((code, devices), (abi::ncclInvalidUsage, -1));
        let words = format!("{name}={value}: a whole number from {range} is expected");
        assert!(log.iter().any(|line| line.contains(&words)), "{log:?}");
    }
    Ok(())
}

#[test]
fn what_is_not_honoured_and_what_does_not_exist_is_named() -> Result<()> {
    let resilience = "NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT";
    let env = [
        ("NCCL_IB_DATA_DIRECT", "1"),
        ("NCCL_IB_TIMOUT", "22"),
        ("NCCL_IB_TIMEOUT", "20"),
        (resilience, "5"),
    ];
    let (code, _, log) = init_with(require!(setting()), &env)?;
    assert_eq!(code, abi::ncclSuccess);
    let about = |name: &str| {
        log.iter().find(|l| l.contains("ignores") && l.contains(&format!(" {name}: ")))
    };
    let lost = |name: &str| {
        about(name).is_some_and(|l| l.contains("WARN") && !l.contains("nothing is lost"))
    };
    assert!(lost("NCCL_IB_DATA_DIRECT") && !lost(resilience) && !lost("NCCL_IB_TIMOUT"), "{log:?}");
    assert!(
        about(resilience)
            .is_some_and(|l| l.contains("Ferrite recovers by default (FERRITE_FAILOVER)")),
        "{log:?}"
    );
    assert!(
        about("NCCL_IB_TIMOUT").is_some_and(|l| l.contains("there is no such variable")),
        "{log:?}"
    );
    assert!(about("NCCL_IB_TIMEOUT").is_none(), "{log:?}");
    Ok(())
}

#[test]
fn lanes_are_said_to_be_ignored_where_nccl_s_variables_count() -> Result<()> {
    let env = [("FERRITE_LANES", "4"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")];
    let (code, _, log) = init_with(require!(setting()), &env)?;
    assert_eq!(code, abi::ncclSuccess);
    let said =
        |line: &&String| line.contains("ignores FERRITE_LANES: NCCL_IB_QPS_PER_CONNECTION or");
    assert_eq!(log.iter().filter(said).count(), 1, "{log:?}");
    Ok(())
}

#[test]
fn automatic_lanes_are_refused_and_other_settings_that_are_gone_are_named() -> Result<()> {
    let (code, _, log) = init_with(require!(setting()), &[("FERRITE_LANES", "auto")])?;
    assert_eq!(code, abi::ncclInvalidUsage);
    let words = "FERRITE_LANES=auto: a whole number from 1 to 8 is expected";
    assert!(log.iter().any(|said| said.contains(words)), "{log:?}");
    let gone =
        [("FERRITE_SPARE", "1"), ("FERRITE_LANES_AFTER_MB", "1"), ("FERRITE_LANES_BUDGET", "1")];
    let (code, _, log) = init_with(require!(setting()), &gone)?;
    assert_eq!(code, abi::ncclSuccess);
    for (name, _) in gone {
        let words = format!("ignores {name}: ");
        assert!(log.iter().any(|said| said.contains(&words)), "{name}: {log:?}");
    }
    Ok(())
}

#[test]
fn an_interface_that_does_not_exist_is_named() -> Result<()> {
    let (code, _, log) = init_with(require!(setting()), &[("NCCL_SOCKET_IFNAME", "nowhere9")])?;
    assert_eq!(code, abi::ncclInvalidUsage);
    assert!(
        log.iter()
            .any(|l| l.contains("NCCL_SOCKET_IFNAME=nowhere9: no interface fits; there are: ")),
        "{log:?}"
    );
    Ok(())
}

/// Without a device there is one line and nothing else.
fn nothing_but_one_line((code, devices, log): (u32, i32, Vec<String>), words: &str) {
    assert_eq!((code, devices), (abi::ncclSuccess, 0));
    assert_eq!(log.len(), 1, "{log:#?}");
    assert!(log[0].contains("Ferrite has no device: ") && log[0].contains(words), "{log:?}");
}

#[test]
fn no_libibverbs_means_no_device_and_one_line() -> Result<()> {
    let env = [("NCCL_IBVERBS_LIB", "/nonexistent/libibverbs.so.1")];
    nothing_but_one_line(init_with(require!(setting()), &env)?, "/nonexistent/libibverbs.so.1");
    Ok(())
}

#[test]
fn no_rdma_device_means_one_line() -> Result<()> {
    if std::path::Path::new("/sys/class/infiniband")
        .read_dir()
        .is_ok_and(|mut dir| dir.next().is_some())
    {
        skipped("a machine without RDMA devices: this one has some");
        return Ok(());
    }
    let mut setting = require!(setting());
    setting.verbs = Verbs::System;
    nothing_but_one_line(init_with(setting, &[])?, "");
    Ok(())
}

/// A warning, whatever the user has asked for, since a list that leaves nothing is a mistake.
#[test]
fn a_filter_that_admits_nothing_is_named_with_what_there_is() -> Result<()> {
    for required in ["Ferrite", ""] {
        let found = init_with(
            require!(setting()),
            &[("NCCL_IB_HCA", "rocep1s0f0"), ("NCCL_NET", required)],
        )?;
        let line = found.2.first().cloned().unwrap_or_default();
        nothing_but_one_line(found, "softrnic0:1, softrnic1:1: NCCL_IB_HCA=rocep1s0f0 excludes it");
        assert!(
            line.starts_with("WARN") && line.contains("there are: softrnic0, softrnic1"),
            "{line}"
        );
        assert!(
            line.contains("libibverbs is ") && line.contains("softrnic/libibverbs.so.1"),
            "{line}"
        );
    }
    Ok(())
}

#[test]
fn an_entry_that_names_nothing_is_reported_once_and_the_others_count() -> Result<()> {
    for (list, devices, words) in [
        (
            "softrnic0,softrnic7",
            1,
            "no device has a name that begins with softrnic7; there are: softrnic0, softrnic1",
        ),
        ("^=softrnic0,^=softrnic1", 1, "^=softrnic1 counts as a name"),
        ("softrnic0, softrnic1", 2, "NCCL's built-in transport takes blanks as part of the names"),
    ] {
        let (code, found, log) = init_with(require!(setting()), &[("NCCL_IB_HCA", list)])?;
        assert_eq!((code, found), (abi::ncclSuccess, devices), "{list}");
        let said = format!("NCCL_IB_HCA={list}: {words}");
        assert_eq!(log.iter().filter(|line| line.contains(&said)).count(), 1, "{list}: {log:#?}");
    }
    let (_, _, log) = init_with(require!(setting()), &[("NCCL_SOCKET_IFNAME", "lo,nowhere9")])?;
    assert_eq!(
        log.iter().filter(|line| line.contains("nowhere9; there are: ")).count(),
        1,
        "{log:#?}"
    );
    let (_, _, log) = init_with(require!(setting()), &[("NCCL_IB_ADDR_RANGE", "192.168.7.0/24")])?;
    let said = |line: &&String| {
        line.starts_with("WARN")
            && line.contains("NCCL_IB_ADDR_RANGE=192.168.7.0/24: no port has a GID in it")
    };
    assert_eq!(log.iter().filter(said).count(), 1, "{log:#?}");
    Ok(())
}

#[test]
fn the_file_of_libibverbs_is_reported() -> Result<()> {
    let (_, _, log) = init_with(require!(setting()), &[])?;
    let is_it = |line: &&String| line.contains(" device(s); ") && line.contains("; libibverbs is ");
    let line = log.iter().find(is_it).unwrap_or_else(|| panic!("{log:#?}"));
    assert!(line.contains("softrnic/libibverbs.so.1") && !line.contains("loaded too"), "{line}");
    let folder = Scratch::new();
    // Another one that is in the process already, under another name than the one that is looked
    // for.
    let other =
        folder.write("libibverbs.so.0", std::fs::read(require!(plugin())).expect("a library"));
    let (_, _, log) =
        init_with(require!(setting()), &[("LD_PRELOAD", other.to_str().expect("text"))])?;
    let also = format!("{} is loaded too", other.display());
    assert!(log.iter().any(|line| line.contains(&also)), "{log:#?}");
    Ok(())
}

/// As NCCL puts what a configuration file sets into the environment of a process that has started
/// without it.
#[test]
fn the_error_of_a_setting_names_the_file_that_has_set_it() -> Result<()> {
    let folder = Scratch::new();
    let file = folder.write("nccl.conf", "# of this site\nNCCL_IB_TIMEOUT=99\n");
    let setting = require!(setting()).env("NCCL_CONF_FILE", &file).env("NCCL_DEBUG", "WARN");
    for variable in ["LATER", "NCCL_IB_TIMEOUT"] {
        let [log, _] = pair(&setting.clone().env(variable, "99"), |_| {
            if let Some(value) = std::env::var_os("LATER") {
                // SAFETY: this process has one thread so far.
                unsafe { std::env::set_var("NCCL_IB_TIMEOUT", value) };
            }
            let transport = Transport::without_init(Library::open(&Source::plugin(
                dist().join("lib/libnccl-net.so"),
            ))?);
            assert!(transport.init().is_err());
            Ok(lab::nccl::debug_log::lines())
        })?;
        let line = log
            .iter()
            .find(|line| line.contains("NCCL_IB_TIMEOUT=99"))
            .unwrap_or_else(|| panic!("{log:?}"));
        let names_file =
            line.contains(&format!("is expected; it is set by {}, line 2", file.display()));
        assert_eq!(names_file, variable == "LATER", "{line}");
    }
    Ok(())
}

#[test]
fn ib_disable_means_no_device_and_one_line() -> Result<()> {
    nothing_but_one_line(
        init_with(require!(setting()), &[("NCCL_IB_DISABLE", "1")])?,
        "NCCL_IB_DISABLE=1",
    );
    Ok(())
}
