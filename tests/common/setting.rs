//! The software RDMA devices that a test's processes have.

use lab::nccl::debug_log::ALL_INFO;
use lab::nccl::release;
use lab::nccl::release::NcclRelease;
use lab::pair::Setting;
use lab::verbs::Verbs;
use std::path::PathBuf;
use std::process::Command;
use testkit::dist::{plugin, softrnic_library_folder, softrnic_program};
use testkit::{Missing, program};

/// Two processes over the software device.
pub(crate) fn setting() -> Result<Setting, Missing> {
    plugin()?;
    let verbs = Verbs::softrnic(&softrnic_library_folder()?).expect("it is there");
    Ok(Setting::new(verbs)
        .env("FERRITE_HANDSHAKE_TIMEOUT", "20")
        .env("SOFTRNIC_STRICT", "1")
        .env("SOFTRNIC_ZERO_KEYS", "1"))
}

/// The same with more variables.
pub(crate) fn setting_with(env: &[(&str, &str)]) -> Result<Setting, Missing> {
    Ok(env.iter().fold(setting()?, |setting, (name, value)| setting.env(name, value)))
}

/// The same with the plugin's whole log, and `env` beside.
pub(crate) fn talkative(env: &[(&str, &str)]) -> Result<Setting, Missing> {
    setting_with(&[&[ALL_INFO], env].concat())
}

/// The library of a release of NCCL, if it is in the cache: tests do not fetch.
pub(crate) fn stock_nccl(release: &str) -> Result<PathBuf, Missing> {
    let release = NcclRelease::named(release).expect("a known release");
    let library = release::cached(release).expect("there is a folder for the cache");
    if library.exists() {
        return Ok(library);
    }
    Err(Missing(format!("{} is missing (`ferrite wheel {release}` fetches it)", library.display())))
}

/// NCCL 2.21.5: the file that `FERRITE_NCCL` names, or the one in the cache.
pub(crate) fn default_nccl() -> Result<PathBuf, Missing> {
    if std::env::var_os("FERRITE_NCCL").is_some_and(|path| !path.is_empty()) {
        return release::find(None).map_err(|error| Missing(error.to_string()));
    }
    stock_nccl("2.21.5")
}

/// Changes the devices of this process's fabric.
pub(crate) fn softrnic(arguments: &str) {
    let path = softrnic_program().unwrap_or_else(|missing| panic!("{missing}"));
    program::stdout_of(Command::new(path).args(arguments.split(' ')));
}

/// Sets a variable of this process.
pub(crate) fn set(name: &str, value: &str) {
    // SAFETY: the process has one thread that looks at the environment: this one.
    unsafe { std::env::set_var(name, value) };
}

/// Whether a process may have a mount namespace of its own.
pub(crate) fn mount_namespaces() -> Result<(), Missing> {
    const PROBE: &str = "m='mount -t tmpfs none /sys/class'; unshare -m $m || unshare -Urm $m";
    let works =
        Command::new("sh").args(["-c", PROBE]).output().is_ok_and(|output| output.status.success());
    if works { Ok(()) } else { Err(Missing::new("mount namespaces are not to be had")) }
}
