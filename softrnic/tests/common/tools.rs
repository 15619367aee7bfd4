//! RDMA tools of the system, run on the flavour of the library that is made for them.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::elf;
use testkit::softrnic::Softrnic;
use testkit::unique::unique_name;
use testkit::{Missing, Scratch, dist, wait_until};

pub const PROGRAMS: &[&str] = &[
    "ibv_devices", "ibv_devinfo", "ibv_asyncwatch", "ibv_rc_pingpong", "ibv_uc_pingpong",
    "ibv_ud_pingpong", "ibv_srq_pingpong", "ibv_xsrq_pingpong", "ib_write_bw", "ib_write_lat",
    "ib_send_bw", "ib_send_lat", "ib_read_bw", "ib_read_lat", "ib_atomic_bw", "ib_atomic_lat",
    "rping", "ucmatose", "rdma_server", "rdma_client", "fi_pingpong", "qperf",
];
pub const LIBRARIES: &[&str] =
    &["libmlx5.so.1", "libmlx4.so.1", "libefa.so.1", "librdmacm.so.1", "libfabric.so.1"];

/// Stands for the number of a port in the arguments of a tool.
pub const PORT: &str = "PORT";

const LIMIT: Duration = Duration::from_secs(120);

/// The built library for RDMA tools.
///
/// # Errors
/// It or the tools are missing.
pub fn library() -> Result<PathBuf, Missing> {
    let path = dist::built("softrnic-tools/libibverbs.so.1")?;
    for (program, package) in [("ibv_devinfo", "ibverbs-utils"), ("ib_write_bw", "perftest")] {
        if elf::programs(&[program]).next().is_none() {
            return Err(Missing(format!("{program} is missing (package {package})")));
        }
    }
    Ok(path)
}

/// A program of this test's own, `clients/<name>.c`, compiled with the headers and libraries of the
/// system.
///
/// # Errors
/// The compiler or what `needs` names is missing.
pub fn compiled(
    compiler: &str,
    name: &str,
    options: &[&str],
    needs: &str,
) -> Result<(Scratch, String), Missing> {
    let folder = Scratch::new();
    let program = folder.join(name).to_str().expect("UTF-8").to_owned();
    let source = format!("{}/tests/clients/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let mut compile = Command::new(compiler);
    let Ok(said) =
        compile.args(["-Wall", "-Werror", "-o", &program, &source]).args(options).output()
    else {
        return Err(Missing(format!("{compiler} (package {needs})")));
    };
    let text = String::from_utf8_lossy(&said.stderr);
    if text.contains("No such file or directory") || text.contains("cannot find -l") {
        return Err(Missing(format!("headers and libraries (package {needs})")));
    }
    assert!(said.status.success(), "{text}");
    Ok((folder, program))
}

/// A fabric of its own to run tools on.
pub struct Bench {
    folder: PathBuf,
    softrnic: Softrnic,
    /// What tools are run by, if they look for devices in `/sys` and `/dev`: `softrnic`, and the
    /// options of its `run`.
    faithful: Option<(PathBuf, Vec<&'static str>)>,
}

impl Bench {
    /// # Errors
    /// The library or the tools are missing.
    pub fn new() -> Result<Self, Missing> {
        let folder = library()?.parent().expect("in a folder").to_owned();
        Ok(Self { folder, softrnic: Softrnic::new(), faithful: None })
    }

    /// One for `program` of a Debian package, whose processes have these variables.
    ///
    /// # Errors
    /// It is missing.
    pub fn of(
        (program, package): (&str, &str),
        variables: &[(&str, &str)],
    ) -> Result<Self, Missing> {
        if elf::programs(&[program]).next().is_none() {
            return Err(Missing(format!("{program} is missing (package {package})")));
        }
        let softrnic = Softrnic::new().envs(variables);
        let folder = dist::built("softrnic-tools/libibverbs.so.1")?
            .parent()
            .expect("in a folder")
            .to_owned();
        Ok(Self { folder, softrnic, faithful: None })
    }

    /// The same, whose tools see the devices in `/sys` and `/dev`.
    ///
    /// # Errors
    /// `softrnic` is missing, or there can be no mount namespaces.
    pub fn faithful(self) -> Result<Self, Missing> {
        self.run_with(&["--tools", "--faithful"])
    }

    /// One whose tools run on the system's own libibverbs and this driver library of it, with these
    /// variables.
    ///
    /// # Errors
    /// As for [`Self::faithful`], or the library is missing.
    pub fn beneath(provider: &'static str, variables: &[(&str, &str)]) -> Result<Self, Missing> {
        dist::built("softrnic-provider/libsoftrnic-provider.so")?;
        Self::of(("ibv_devinfo", "ibverbs-utils"), variables)?.run_with(&["--provider", provider])
    }

    fn run_with(mut self, options: &[&'static str]) -> Result<Self, Missing> {
        let program = dist::softrnic_program()?;
        let mut probe = Command::new(&program);
        probe.arg("run").args(options).args(["--fabric", &unique_name("probe"), "--", "true"]);
        probe.env_remove("LD_LIBRARY_PATH");
        let said = probe.output().expect("it runs");
        if !said.status.success() {
            return Err(Missing(format!(
                "{}: {}",
                options.join(" "),
                String::from_utf8_lossy(&said.stderr)
            )));
        }
        self.faithful = Some((program, options.to_vec()));
        Ok(self)
    }

    fn command(&self, tool: &str) -> Command {
        let Some((program, options)) = &self.faithful else {
            let mut command = Command::new(tool);
            command.env("LD_LIBRARY_PATH", &self.folder);
            return command;
        };
        let mut command = Command::new(program);
        command.arg("run").args(options).args(["--fabric", self.softrnic.fabric(), "--", tool]);
        // Where cargo puts softrnic's library, which is not to be beneath a provider.
        command.env_remove("LD_LIBRARY_PATH");
        command
    }

    /// The fabric's name.
    pub fn fabric(&self) -> &str {
        self.softrnic.fabric()
    }

    pub fn run(&self, tool: &str, arguments: &[&str]) -> Outcome {
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        Running::start(self, tool, &arguments).finish()
    }

    /// Server and client of the same tool with the same arguments: what they did, in this order.
    pub fn pair(&self, tool: &str, arguments: &[&str]) -> [Outcome; 2] {
        self.pair_of(tool, &[arguments, &[]], &[arguments, &[]])
    }

    /// As `pair`, with arguments of their own.
    pub fn pair_of(
        &self,
        tool: &str,
        server: &[&[&str]; 2],
        client: &[&[&str]; 2],
    ) -> [Outcome; 2] {
        let port: &[&str] = &["-p", PORT];
        let client = [port, &client.concat(), &["127.0.0.1"]].concat();
        self.serve(tool, &[port, &server.concat()].concat(), &client)
    }

    /// Server and client of the same tool with these arguments, among them [`PORT`] in place of the
    /// number of a port.
    pub fn serve(&self, tool: &str, server: &[&str], client: &[&str]) -> [Outcome; 2] {
        self.serve_by([tool; 2], server, client)
    }

    /// As `serve`, of two tools.
    pub fn serve_by(&self, tools: [&str; 2], server: &[&str], client: &[&str]) -> [Outcome; 2] {
        let port = Port::free();
        let numbered = |arguments| with_port(arguments, port.number);
        let mut server = Running::start(self, tools[0], &numbered(server));
        if server.listens(self, port.number) {
            let client = Running::start(self, tools[1], &numbered(client)).finish();
            return [server.finish(), client];
        }
        panic!("the server does not listen: {:?}", server.finish());
    }

    /// As `serve`, of a server that is killed when its client has written this: what the client
    /// did.
    pub fn kill_the_server(
        &self,
        tool: &str,
        server: &[&str],
        client: &[&str],
        when: &str,
    ) -> Outcome {
        let port = Port::free();
        let numbered = |arguments| with_port(arguments, port.number);
        let mut server = Running::start(self, tool, &numbered(server));
        assert!(
            server.listens(self, port.number),
            "the server does not listen: {:?}",
            server.finish()
        );
        let client = Running::start(self, tool, &numbered(client));
        wait_until("the client has written it", || client.said().contains(when));
        drop(server);
        client.finish()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.softrnic.assert_clean();
        }
    }
}

/// How a tool ended and what it said.
#[derive(Debug)]
pub struct Outcome {
    pub command: String,
    /// `None`: by a signal, or not within the limit.
    pub code: Option<i32>,
    pub text: String,
}

impl Outcome {
    /// It went well and no driver library asked for a kernel device.
    pub fn well(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        assert!(!self.text.contains("softrnic:"), "{self:?}");
        self.text
    }
}

/// A tool at work; killed when it is dropped.
struct Running {
    command: String,
    child: Child,
    output: PathBuf,
}

impl Running {
    fn start(bench: &Bench, tool: &str, arguments: &[String]) -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let output = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{}-{count}.log", bench.softrnic.fabric()));
        let file = File::create(&output).expect("a file for the output");
        let child = bench
            .command(tool)
            .args(arguments)
            .envs(bench.softrnic.vars())
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second descriptor"))
            .stderr(file)
            .spawn()
            .expect("the tool starts");
        Self { command: format!("{tool} {}", arguments.join(" ")), child, output }
    }

    /// Waits until the tool accepts connections; false if it ended instead.
    fn listens(&mut self, bench: &Bench, port: u16) -> bool {
        let end = Instant::now() + LIMIT;
        while Instant::now() < end && self.child.try_wait().expect("wait").is_none() {
            if is_listening(port) || is_waiting(bench.softrnic.fabric(), port) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    fn finish(mut self) -> Outcome {
        let end = Instant::now() + LIMIT;
        let mut status = self.child.try_wait().expect("wait");
        while status.is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
            status = self.child.try_wait().expect("wait");
        }
        Outcome {
            command: self.command.clone(),
            code: status.and_then(|s| s.code()),
            text: self.said(),
        }
    }

    /// What it has written so far.
    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).expect("the output")).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.output);
    }
}

/// These arguments, with this number in place of [`PORT`].
fn with_port(arguments: &[&str], number: u16) -> Vec<String> {
    let word = |word: &&str| if *word == PORT { number.to_string() } else { (*word).to_owned() };
    arguments.iter().map(word).collect()
}

/// A port that nobody uses, and that no other test takes meanwhile: its number is a name that is
/// held. It is none of those that the kernel gives out by itself.
struct Port {
    number: u16,
    _name: UnixListener,
}

impl Port {
    fn free() -> Self {
        let found = (0..1000).find_map(|step| {
            let number = 20_000 + ((std::process::id() + step) % 10_000) as u16;
            let name = SocketAddr::from_abstract_name(format!("softrnic-test-port-{number}"))
                .expect("a name");
            let name = UnixListener::bind_addr(&name).ok()?;
            // As the tools do: on every address.
            let is_free = TcpListener::bind((Ipv4Addr::UNSPECIFIED, number)).is_ok();
            is_free.then_some(Self { number, _name: name })
        });
        found.expect("a free port")
    }
}

/// Whether somebody on the fabric listens there as librdmacm does: a socket of the local domain
/// that accepts connections.
fn is_waiting(fabric: &str, port: u16) -> bool {
    let (name, accepts) = (format!("@softrnic-cm/{fabric}/{port}"), "00010000");
    let text = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    text.lines().any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields.last() == Some(&name.as_str()) && fields.get(3) == Some(&accepts)
    })
}

/// Whether somebody listens there, without connecting: the tools take a connection for their peer.
fn is_listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let end = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = fs::read_to_string(table).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&end))
                && fields.nth(1) == Some(LISTEN)
        })
    })
}
