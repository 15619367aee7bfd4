//! Where settings come from: the environment, NCCL's configuration files and NCCL's environment
//! plugin.

use crate::common::prelude::*;
use std::ffi::CString;
use std::process::Command;

/// An environment plugin that knows one setting itself, hides one, and passes the others through.
const PLUGIN: &str = r#"
#include <stdlib.h>
#include <string.h>
static int init(unsigned char major, unsigned char minor, unsigned char patch, const char *suffix, void *log) { return 0; }
static int finalize(void) { return 0; }
static const char *get(const char *name) {
    if (!strcmp(name, "NCCL_IB_DISABLE")) return 0;
    return strcmp(name, "NCCL_IB_HCA") ? getenv(name) : "softrnic0";
}
struct { const char *name; void *init, *finalize; const char *(*get)(const char *); } SYMBOL = { "site", init, finalize, get };
"#;
const LINE: &str =
    "NCCL's environment plugin site says: NCCL_IB_DISABLE not set, NCCL_IB_HCA=softrnic0";
/// Ferrite has no device, unless the plugin hides it.
const HIDDEN: (&str, &str) = ("NCCL_IB_DISABLE", "1");

/// The plugin with the table of a version, in `folder`.
fn env_plugin(folder: &Scratch, symbol: &str) -> String {
    let (source, library) = (folder.join("site.c"), folder.join("site.so"));
    std::fs::write(&source, PLUGIN).expect("it is written");
    let define = format!("-DSYMBOL={symbol}");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", &define, "-o"])
        .arg(&library)
        .arg(&source)
        .status();
    assert!(made.expect("a C compiler").success());
    library.to_str().expect("text").to_owned()
}

/// A process has so many `devices` over the loader of `release`, with each `env` and `devices`.
fn over_loader(release: &str, cases: &[(&[(&str, &str)], usize)]) -> Result<()> {
    let nccl = require!(stock_nccl(release));
    let plugin =
        require!(plugin()).canonicalize().unwrap_or_default().to_string_lossy().into_owned();
    for (env, devices) in cases {
        let mut setting = require!(setting()).env("EXPECTED", devices.to_string());
        setting = env.iter().fold(setting, |setting, (name, value)| setting.env(name, value));
        setting.net_plugin.clone_from(&plugin);
        alone(Ok(setting), |_| {
            let transport =
                Transport::open(&Source::Loader { nccl: nccl.clone(), plugin: plugin.clone() })?;
            assert_eq!(
                transport.devices()?.to_string(),
                std::env::var("EXPECTED").expect("it is set")
            );
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn an_environment_plugin_that_is_loaded_is_asked_and_one_that_is_not_is_not_loaded() -> Result<()> {
    let folder = Scratch::new();
    let site = env_plugin(&folder, "ncclEnvPlugin_v2");
    let setting = require!(setting())
        .env(ALL_INFO.0, ALL_INFO.1)
        .env("NCCL_ENV_PLUGIN", &site)
        .env(HIDDEN.0, HIDDEN.1);
    for loads in ["1", "0"] {
        alone(Ok(setting.clone().env("LOADS", loads)), |_| {
            let path =
                CString::new(std::env::var("NCCL_ENV_PLUGIN").expect("it is set")).expect("a path");
            let loads = std::env::var("LOADS").is_ok_and(|loads| loads == "1");
            if loads {
                // SAFETY: a library of ours.
                assert!(!unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }.is_null());
            }
            let transport = Transport::open(&Source::plugin(plugin().expect("it is there")))?;
            let devices = usize::from(loads);
            assert_eq!((transport.devices()?, said(&[LINE])), (devices, loads), "{}", log());
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn nccl_2_28_and_ferrite_ask_the_same_environment_plugin() -> Result<()> {
    let folder = Scratch::new();
    over_loader(
        "2.28.9",
        &[(&[("NCCL_ENV_PLUGIN", &env_plugin(&folder, "ncclEnvPlugin_v1")), HIDDEN], 1)],
    )
}

#[test]
fn nccl_2_32_and_ferrite_ask_the_same_environment_plugin() -> Result<()> {
    let folder = Scratch::new();
    over_loader(
        "2.32.3",
        &[(&[("NCCL_ENV_PLUGIN", &env_plugin(&folder, "ncclEnvPlugin_v2")), HIDDEN], 1)],
    )
}

/// What NCCL's configuration file sets reaches Ferrite, unless the environment sets it otherwise.
fn configuration_file_counts(release: &str) -> Result<()> {
    let folder = Scratch::new();
    let file = folder.join("nccl.conf");
    std::fs::write(&file, "# of this site\nNCCL_IB_HCA=softrnic0\n").expect("it is written");
    let named = ("NCCL_CONF_FILE", file.to_str().expect("text"));
    over_loader(release, &[(&[named], 1), (&[named, ("NCCL_IB_HCA", "softrnic")], 2)])
}

cases! { Result<()>;
    settings_of_the_configuration_file_of_nccl_2_28_reach_ferrite =>
        configuration_file_counts("2.28.9");
    settings_of_the_configuration_file_of_nccl_2_30_reach_ferrite =>
        configuration_file_counts("2.30.7");
    settings_of_the_configuration_file_of_nccl_2_32_reach_ferrite =>
        configuration_file_counts("2.32.3");
}
