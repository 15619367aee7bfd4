//! The data path neither allocates nor calls the kernel: the isend, irecv and test of messages, once a connection stands.

mod common;
#[path = "common/hush.rs"]
mod hush;

use common::{faithful, plugin_transport, setting, skipped};
use ferrite::buffer::Buffer;
use ferrite::comm::{Place, RecvComm, Region, Request, SendComm};
use ferrite::error::Result;
use ferrite::pair::{self, Setting};
use ferrite::seat::Seat;
use ferrite::transport::Transport;
use hush::{Noise, hush};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const IN_FLIGHT: usize = 8;
const TAG: i32 = 5;
/// Calls of `test` in which a message within one process has long arrived.
const POLLS: usize = 10_000_000;

/// A connection of this process with itself.
struct Own {
    // Regions first: they are deregistered before their communicators are closed.
    out: Region,
    into: Region,
    send: SendComm,
    recv: RecvComm,
    bytes: usize,
}

impl Own {
    fn open(seat: &Seat, transport: &Transport, bytes: usize) -> Result<Self> {
        let (mut handle, mut listener) = transport.listen(0)?;
        let mut deadline = seat.deadline("connecting to itself");
        let (mut send, mut recv) = (None, None);
        let (send, recv) = loop {
            send = if send.is_none() { transport.connect(0, &mut handle)? } else { send };
            recv = if recv.is_none() { listener.accept()? } else { recv };
            match (send, recv) {
                (Some(send), Some(recv)) => break (send, recv),
                pending => (send, recv) = pending,
            }
            deadline.idle()?;
        };
        listener.close()?;
        let buffer = || Buffer::new(bytes * IN_FLIGHT).map(Arc::new);
        let (out, into) = (send.register(&buffer()?)?, recv.register(&buffer()?)?);
        Ok(Self { out, into, send, recv, bytes })
    }

    fn sends(&self) -> Result<[Request<'_>; IN_FLIGHT]> {
        each(|i| {
            loop {
                if let Some(request) = self.send.send(&self.out, i * self.bytes, self.bytes, TAG)? {
                    return Ok(request);
                }
            }
        })
    }

    /// Messages received one by one.
    fn singles(&self) -> Result<()> {
        let receives: [_; IN_FLIGHT] = each(|i| {
            let request = self.recv.receive(&self.into, i * self.bytes, self.bytes, TAG)?;
            Ok(request.expect("there is room"))
        })?;
        // Receives may be announced in batches: testing one announces them.
        let mut receives = receives.map(Some);
        for receive in &mut receives {
            let done = receive.as_mut().expect("not done").test(&mut [0])?;
            assert!(!done, "nothing has been sent");
        }
        self.sends()?.into_iter().try_for_each(|send| self.finish(send, 1))?;
        receives.into_iter().flatten().try_for_each(|receive| self.finish(receive, 1))
    }

    /// The same as one group.
    fn group(&self) -> Result<()> {
        let places: [_; IN_FLIGHT] =
            std::array::from_fn(|i| Place { region: &self.into, offset: i * self.bytes, len: self.bytes, tag: TAG });
        let receive = self.recv.receive_group(&places)?.expect("there is room");
        self.sends()?.into_iter().try_for_each(|send| self.finish(send, 1))?;
        self.finish(receive, IN_FLIGHT)
    }

    fn finish(&self, mut request: Request<'_>, count: usize) -> Result<()> {
        let mut sizes = [0; IN_FLIGHT];
        for _ in 0..POLLS {
            if request.test(&mut sizes[..count])? {
                assert!(sizes[..count].iter().all(|size| *size as usize == self.bytes), "{sizes:?}");
                return Ok(());
            }
        }
        panic!("a message does not arrive");
    }
}

/// An array of what `make` gives, or its first error.
fn each<T>(mut make: impl FnMut(usize) -> Result<T>) -> Result<[T; IN_FLIGHT]> {
    let mut failed = None;
    let made: [Option<T>; IN_FLIGHT] = std::array::from_fn(|i| make(i).map_err(|e| failed = Some(e)).ok());
    match failed {
        Some(error) => Err(error),
        None => Ok(made.map(|one| one.expect("no error"))),
    }
}

type Round = fn(&Own) -> Result<()>;

/// The device's strict mode is not silent itself.
fn without_strictness(setting: Setting) -> Setting {
    setting.env("SOFTRNIC_STRICT", "0")
}

/// Rounds of messages of `bytes` bytes within rank 0: some to warm up, then some that are listened to.
fn listen_to(seat: &Seat, bytes: usize, round: Round) -> Result<()> {
    if seat.rank() == 1 {
        return Ok(());
    }
    let transport = plugin_transport()?;
    let own = Own::open(seat, &transport, bytes)?;
    let rounds = |count| (0..count).try_for_each(|_| round(&own));
    rounds(100)?;
    match hush(|| rounds(500)) {
        Ok((result, noise)) => {
            result?;
            assert_eq!(noise, Noise::default(), "500 times {IN_FLIGHT} messages of {bytes} B");
        }
        Err(error) => skipped(&format!("syscall user dispatch: {error}")),
    }
    Ok(())
}

/// Over one device, with `env`.
fn quiet(test: &str, bytes: usize, env: &[(&str, &str)], round: Round) -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    let setting = env.iter().fold(without_strictness(setting), |setting, (name, value)| setting.env(*name, *value));
    pair::run(test, &setting, |seat| listen_to(seat, bytes, round))?;
    Ok(())
}

#[test]
fn small_messages_are_quiet() -> Result<()> {
    quiet("small_messages_are_quiet", 8, &[], Own::singles)
}

/// Clear-to-sends come from registered memory then.
#[test]
fn messages_without_inline_data_are_quiet() -> Result<()> {
    let env = [("SOFTRNIC_MAX_INLINE", "0"), ("SOFTRNIC_INLINE_EXCESS", "grant")];
    quiet("messages_without_inline_data_are_quiet", 8, &env, Own::singles)
}

#[test]
fn large_messages_are_quiet() -> Result<()> {
    quiet("large_messages_are_quiet", 1 << 16, &[], Own::singles)
}

#[test]
fn groups_are_quiet() -> Result<()> {
    quiet("groups_are_quiet", 1000, &[], Own::group)
}

#[test]
fn stripes_are_quiet() -> Result<()> {
    let env =
        [("NCCL_IB_QPS_PER_CONNECTION", "3"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1"), ("NCCL_IB_ADAPTIVE_ROUTING", "1")];
    quiet("stripes_are_quiet", 1 << 16, &env, Own::singles)
}

/// Over the rails of one device.
fn quiet_over_rails(test: &str, rails: usize, arguments: &[&str], round: Round) -> Result<()> {
    faithful::run(test, arguments, without_strictness, |seat| {
        let name = plugin_transport()?.properties(0)?.name;
        assert_eq!(name.split('+').count(), rails, "{name}");
        listen_to(seat, 1 << 16, round)
    })
}

#[test]
fn rails_are_quiet() -> Result<()> {
    quiet_over_rails("rails_are_quiet", 2, &[], Own::singles)
}

/// Slots of clear-to-sends are twice as long then.
#[test]
fn many_rails_are_quiet() -> Result<()> {
    quiet_over_rails("many_rails_are_quiet", 4, &["--devices", "4", "--ports", "2"], Own::group)
}

/// The instrument itself hears an allocation and a system call.
#[test]
fn noise_is_heard() {
    let heard = hush(|| {
        drop(std::hint::black_box(vec![1_u8]));
        // SAFETY: it only asks.
        unsafe { libc::getppid() }
    });
    match heard {
        Ok((_, noise)) => assert_eq!(noise, Noise { allocations: 2, system_call: Some(libc::SYS_getppid as i32) }),
        Err(error) => skipped(&format!("syscall user dispatch: {error}")),
    }
}

/// Every file below `folder`.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("it is readable").path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// The files that every message passes through have no lock in them.
#[test]
fn the_data_path_takes_no_lock() {
    const FOLDERS: [&str; 2] = ["net/data", "proto"];
    const FILES: [&str; 5] =
        ["abi/datapath.rs", "net/qp/set.rs", "verbs/queue.rs", "verbs/staging.rs", "verbs/work.rs"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let folders = FOLDERS.iter().flat_map(|folder| files_below(&root.join(folder)));
    for file in FILES.map(|file| root.join(file)).into_iter().chain(folders) {
        let text = std::fs::read_to_string(&file).expect("it is readable");
        for word in ["Mutex", "RwLock", "Condvar", ".lock("] {
            assert!(!text.contains(word), "{}: {word}", file.display());
        }
    }
}
