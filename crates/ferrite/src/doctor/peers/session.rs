//! A session of several hosts: starts the server and this host's own part in it.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::doctor::finding::Verdict;
use crate::doctor::loopback;
use crate::doctor::machine::Machine;
use crate::doctor::peers::server::Plan;
use crate::doctor::peers::{host, judge, server};
use crate::doctor::report::RowReport;
use lab::error::{Error, Result};
use lab::system::host::die_with_parent;

/// The hidden subcommand of a host's part.
const HOST_WORKER: &str = "doctor-host";

/// Serves the session and takes part in it; the rows.
pub(crate) fn serve(listener: &TcpListener, machine: &Machine, plan: &Plan) -> Result<Vec<RowReport>> {
    let place = listener.local_addr().map_err(|e| Error::io("no address", e))?;
    let own = match place.ip().is_unspecified() {
        true => format!("127.0.0.1:{}", place.port()),
        false => place.to_string(),
    };
    let mut child = start(&own, machine, &plan.token)?;
    let hosts = server::gather(listener, plan);
    let tried = server::try_all(&hosts, plan);
    let looked = judge::all(&hosts, plan.hosts, &tried);
    let count = |verdict| looked.iter().filter(|row| row.verdict == verdict).count();
    server::end(&hosts, count(Verdict::Fail), count(Verdict::Warn));
    if hosts.is_empty() {
        child.kill().unwrap_or_default();
    }
    child.wait().map_err(|e| Error::io("cannot wait for this host's part", e))?;
    Ok(looked)
}

/// Takes part in the session of the server at `place`: the exit code of this host's part.
pub(crate) fn join(place: &str, machine: &Machine, token: &str) -> Result<i32> {
    let mut child = start(place, machine, token)?;
    let status = child.wait().map_err(|e| Error::io("cannot wait for this host's part", e))?;
    Ok(status.code().unwrap_or(1))
}

/// Starts this host's part, in the environment under which the plugin is tried.
fn start(place: &str, machine: &Machine, token: &str) -> Result<Child> {
    let hello = host::hello(machine, token)?;
    let plugin: &Path = machine.plugin.as_ref().map_err(|why| Error::Unreadable(why.clone()))?;
    let program = std::env::current_exe().map_err(|e| Error::io("no own program", e))?;
    let mut env: BTreeMap<String, String> = machine.env.clone();
    env.extend(loopback::SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let mut command = Command::new(program);
    command.args([HOST_WORKER, place]).arg(plugin).env_clear().envs(env).stdin(Stdio::piped()).stdout(Stdio::null());
    // SAFETY: between fork and exec there is one system call.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, die_with_parent) };
    let mut child = command.spawn().map_err(|e| Error::io("this host's part cannot be started", e))?;
    // It reads its input to the end, which is when this pipe is dropped.
    if let Some(mut input) = child.stdin.take() {
        input.write_all(hello.as_bytes()).map_err(|e| Error::io("this host's part does not take its hello", e))?;
    }
    Ok(child)
}
