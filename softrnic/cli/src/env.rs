//! Prints the environment in which programs use the device.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value};

use crate::find::{Failure, RUN, named, print, variable};
use crate::library::Library;
use crate::provider::Provider;

/// Prints the environment in which programs use the device, for a shell: eval "$(softrnic env)"
///
/// What is started with it takes part in one fabric, as below `softrnic run`. Which programs these
/// are is not known, so those that load RDMA drivers or librdmacm have to be thought of: --tools.
/// If something is wrong, nothing is printed for the shell, and `eval` of nothing succeeds: a
/// script that is to stop there says settings=$(softrnic env) before eval "$settings".
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// One JSON object, of names and values
    #[arg(long)]
    json: bool,
    /// Lines NAME=value without quotes, as the file has them that docker takes by --env-file, and
    /// that of GITHUB_ENV
    #[arg(long, conflicts_with = "json")]
    env_file: bool,
    #[command(flatten)]
    settings: Settings,
}

impl Options {
    pub(crate) fn show(&self, fabric: Option<&str>) -> Result<(), Failure> {
        let text = self.text(fabric).map_err(Failure::Refused)?;
        print(&text)
    }

    fn text(&self, fabric: Option<&str>) -> Result<String, String> {
        let set = self.settings.variables(fabric, None, None)?;
        for (name, value) in &set {
            // SAFETY: this program has one thread.
            unsafe { std::env::set_var(name, value) };
        }
        // Whether there can be such a device.
        ibverbs::control::planned()?;
        let set = set.into_iter().map(|(name, value)| Ok((name, utf8(name, value)?)));
        let set: Vec<_> = set.collect::<Result<_, String>>()?;
        if self.json {
            let object =
                set.into_iter().map(|(name, value)| (name.to_owned(), Value::String(value)));
            return Ok(format!("{:#}\n", Value::Object(object.collect::<Map<_, _>>())));
        }
        set.iter()
            .map(
                |(name, value)| {
                    if self.env_file { line(name, value) } else { Ok(export(name, value)) }
                },
            )
            .collect()
    }
}

fn utf8(name: &str, value: OsString) -> Result<String, String> {
    value
        .into_string()
        .map_err(|value| format!("{name}={}: must be UTF-8", value.to_string_lossy()))
}

/// For any shell of POSIX.
fn export(name: &str, value: &str) -> String {
    format!("export {name}='{}'\n", value.replace('\'', r"'\''"))
}

fn line(name: &str, value: &str) -> Result<String, String> {
    if value.contains('\n') {
        return Err(format!(
            "{name} has several lines, which such a file cannot have: without --env-file"
        ));
    }
    Ok(format!("{name}={value}\n"))
}

#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// Number of devices, 1 to 8
    #[arg(long, value_name = "N")]
    devices: Option<String>,
    /// Ports of each device, 1 or 2
    #[arg(long, value_name = "N")]
    ports: Option<String>,
    /// Driver whose devices they imitate: bnxt_re, efa, erdma, hns, ionic, irdma, mana, mlx5, rxe,
    /// or a generation of mlx5: mlx5-cx4, mlx5-cx5, mlx5-cx6, mlx5-cx6dx, mlx5-cx7 or mlx5-cx8
    #[arg(long, value_name = "NAME")]
    driver: Option<String>,
    /// roce, ib or unspecified; with exceptions: roce,softrnic1/1=ib
    #[arg(long)]
    link: Option<String>,
    /// GID tables: plain, rich or vlan
    #[arg(long)]
    gids: Option<String>,
    /// In Gb/s; with exceptions: 400,softrnic1/2=100
    #[arg(long, value_name = "GBPS")]
    speed: Option<String>,
    /// In bytes; with exceptions
    #[arg(long)]
    mtu: Option<String>,
    /// Fault rules, or @FILE
    #[arg(long, value_name = "RULES")]
    faults: Option<String>,
    /// Seed of all random decisions
    #[arg(long)]
    seed: Option<String>,
    /// How GPU memory can be registered: none, peermem, dmabuf or both
    #[arg(long)]
    gpu: Option<String>,
    /// Copy GPU memory in a process of its own, which does not wait while the application holds the
    /// CUDA driver
    #[arg(long)]
    gpu_helper: bool,
    /// Undefined memory holds arbitrary bytes, and data is read late
    #[arg(long)]
    strict: bool,
    /// Factor for all modelled waits
    #[arg(long, value_name = "X")]
    time_scale: Option<String>,
    /// Use the flavour of the library that RDMA tools need. `run` does so by itself for a program
    /// that is linked with RDMA drivers; for scripts that load such libraries later, as pyverbs
    /// does, and by `env` it has to be asked for
    #[arg(long)]
    tools: bool,
    /// Folder with libibverbs.so.1, if it is not the one beside this program
    #[arg(long, value_name = "DIR", conflicts_with = "tools")]
    library: Option<PathBuf>,
}

impl Settings {
    /// The variables that a program needs, `program` if it is known, and their values, in the order
    /// in which they are printed.
    pub(crate) fn variables(
        &self,
        fabric: Option<&str>,
        program: Option<&OsStr>,
        provider: Option<Provider>,
    ) -> Result<Vec<(&'static str, OsString)>, String> {
        let library = || match &self.library {
            Some(folder) => Library::named(folder, program),
            None if self.tools => Library::tools(),
            None => Library::of(program),
        };
        let mut set = match provider {
            Some(provider) => provider.variables()?,
            None => {
                let library = library()?;
                let file = library.file().into();
                vec![("LD_LIBRARY_PATH", library.path()), ("NCCL_IBVERBS_LIB", file)]
            }
        };
        set.push(("SOFTRNIC_FABRIC", named(fabric).unwrap_or_else(fresh_name).into()));
        let given = [
            ("SOFTRNIC_DEVICES", &self.devices),
            ("SOFTRNIC_PORTS", &self.ports),
            ("SOFTRNIC_DRIVER", &self.driver),
            ("SOFTRNIC_LINK", &self.link),
            ("SOFTRNIC_GIDS", &self.gids),
            ("SOFTRNIC_SPEED", &self.speed),
            ("SOFTRNIC_MTU", &self.mtu),
            ("SOFTRNIC_FAULTS", &self.faults),
            ("SOFTRNIC_SEED", &self.seed),
            ("SOFTRNIC_GPU", &self.gpu),
            ("SOFTRNIC_TIME_SCALE", &self.time_scale),
        ];
        set.extend(
            given.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?.into()))),
        );
        if self.gpu_helper {
            let program = std::env::current_exe()
                .map_err(|e| format!("--gpu-helper: this program cannot be found: {e}"))?;
            set.push(("SOFTRNIC_GPU_HELPER", program.into()));
        }
        let switches = [
            ("SOFTRNIC_STRICT", self.strict, "1"),
            // NCCL 2.28.7 to 2.28.9 crash in their look for an mlx5 device where every device is of
            // another kind.
            ("NCCL_GIN_TYPE", variable("NCCL_GIN_TYPE").is_none(), "0"),
        ];
        set.extend(
            switches
                .into_iter()
                .filter(|(_, is_on, _)| *is_on)
                .map(|(name, _, value)| (name, value.into())),
        );
        Ok(set)
    }
}

/// A name that no other run has, in another process id namespace either.
fn fresh_name() -> String {
    let random =
        std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id());
    format!("{RUN}{}-{:08x}", std::process::id(), random as u32)
}

#[cfg(test)]
mod tests {
    use super::{export, line};

    #[test]
    fn values_are_quoted_for_a_shell() {
        assert_eq!(export("A", "it's $HOME"), "export A='it'\\''s $HOME'\n");
    }

    #[test]
    fn a_value_of_two_lines_is_none_for_a_file() {
        assert_eq!(line("A", "b c").as_deref(), Ok("A=b c\n"));
        assert!(line("A", "b\nc").is_err());
    }
}
