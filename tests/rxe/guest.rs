//! Inside the virtual machine: a test and what it works with.

pub(crate) use crate::common::process::is_worker;
use lab::error::Result;
use lab::nccl::debug_log::ALL_INFO;
use lab::nccl::library::Source;
use lab::nccl::release;
use lab::pair::Setting;
use lab::transport::Transport;
use lab::verbs::Verbs;
use std::process::Command;
use std::time::Duration;
use testkit::dist::dist;

/// Whether this process runs in the machine.
pub(crate) fn is_here() -> bool {
    std::env::var_os("RXE_GUEST").is_some()
}

/// Whose transport a test drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Ferrite.
    Plugin,
    /// The IB transport inside NCCL 2.21.5.
    Stock,
}

/// One test.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) side: Side,
}

impl Case {
    pub(crate) fn is_stock(&self) -> bool {
        self.side == Side::Stock
    }

    pub(crate) fn source(&self) -> Result<Source> {
        match self.side {
            Side::Plugin => Ok(Source::plugin(dist().join("lib/libnccl-net.so"))),
            Side::Stock => Ok(Source::stock(release::find(None)?)),
        }
    }

    pub(crate) fn transport(&self) -> Result<Transport> {
        Transport::open(&self.source()?)
    }

    /// Two processes over the system's libibverbs, whose connections are set up over `lo`, which no
    /// test touches.
    pub(crate) fn setting(&self) -> Setting {
        let mut setting = Setting::new(Verbs::System);
        setting.silence = Duration::from_secs(60);
        setting.pin = false;
        setting.env(ALL_INFO.0, ALL_INFO.1).env("NCCL_SOCKET_IFNAME", "lo").env("RUST_LOG", "debug")
    }

    /// `dist/bin/ferrite SUBCOMMAND` with this case's transport: what it prints. It has to end
    /// well.
    pub(crate) fn ferrite(
        &self,
        subcommand: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<String> {
        let source = match self.source()? {
            Source::Plugin { path, .. } => ["--plugin".into(), path],
            Source::Stock { nccl } | Source::Loader { nccl, .. } => ["--stock".into(), nccl],
        };
        let mut command = Command::new(dist().join("bin/ferrite"));
        command.arg(subcommand).args(source).args(["--verbs", "system"]).args(arguments);
        command.env("NCCL_SOCKET_IFNAME", "lo").envs(environment.iter().copied());
        Ok(printed(&mut command))
    }
}

/// What a shell command prints; it has to end well.
pub(crate) fn shell(command: &str) -> String {
    printed(Command::new("bash").args(["-c", command]))
}

/// `network.sh COMMAND`.
pub(crate) fn network(command: &str) {
    shell(&network_command(command));
}

/// The same as a command of the shell.
pub(crate) fn network_command(command: &str) -> String {
    format!(concat!("'", env!("CARGO_MANIFEST_DIR"), "/tests/rxe/network.sh' {}"), command)
}

fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    eprintln!("{command:?}\n{stdout}{stderr}");
    assert!(output.status.success(), "{command:?}: {}", output.status);
    stdout
}
