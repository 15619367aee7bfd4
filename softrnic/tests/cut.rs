//! A post that is cut short: its process is traced through it one instruction at a time, and killed
//! at a given one.
//!
//! `SOFTRNIC_KILL_POINTS` says how many places are tried for each kind of request; a number beyond
//! the length of a post tries every instruction.

mod common;

use common::channel::Channel;
use common::prelude::*;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use testkit::dist::built;

/// What the victim posts: the opcode, and whether with a key that nobody has.
const KINDS: [(u32, bool); 5] =
    [(SEND, false), (WRITE_IMM, false), (WRITE, false), (FETCH_ADD, false), (WRITE, true)];
const TERMS: Terms = Terms { timeout: 8, retry_cnt: 1, rnr_retry: 7, min_rnr_timer: 1, access: 15 };
const RECEIVES: u64 = 4;
/// Beyond this something hangs.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Memory that the survivor and its children share, for their addresses.
#[repr(C)]
struct Page {
    address: [AtomicU64; 6],
    /// Whose address this is: 1 the victim's, 2 the survivor's, 0 neither's.
    turn: AtomicU64,
}

impl Page {
    fn new() -> &'static Self {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping that stays; zeros are valid.
        unsafe {
            let at = libc::mmap(
                ptr::null_mut(),
                size_of::<Self>(),
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            &*at.cast::<Self>()
        }
    }

    fn publish(&self, address: &Address, turn: u64) {
        let Address { gid, qpn, psn, rkey, addr } = *address;
        let words = [gid[0], gid[1], u64::from(qpn), u64::from(psn), rkey, addr];
        self.address.iter().zip(words).for_each(|(to, word)| to.store(word, SeqCst));
        self.turn.store(turn, SeqCst);
    }

    fn wait_for(&self, turn: u64) -> Address {
        wait_until("the address of the other process", || self.turn.load(SeqCst) == turn);
        let word = |at: usize| self.address[at].load(SeqCst);
        Address {
            gid: [word(0), word(1)],
            qpn: word(2) as u32,
            psn: word(3) as u32,
            rkey: word(4),
            addr: word(5),
        }
    }
}

fn points(default: u64) -> u64 {
    std::env::var("SOFTRNIC_KILL_POINTS").map_or(default, |text| text.parse().expect("a number"))
}

/// Wherever in its post the victim is killed: the survivor's own request fails, with the completion
/// event for which the CQ was armed before; what the survivor had posted comes back; and its QP can
/// be connected to the next peer, which gets through.
#[test]
fn a_post_may_be_cut_short_anywhere() {
    // The release build of the library, if it exists: its posts take a tenth of the instructions.
    let softrnic = match built("softrnic/libibverbs.so.1") {
        Ok(library) => Softrnic::new().env("SOFTRNIC_TEST_LIBRARY", library.display()),
        Err(_) => Softrnic::new(),
    };
    softrnic.alone(|| {
        let page = Page::new();
        let survivor = Survivor::new();
        for kind in KINDS {
            let Some(length) = survivor.kill_victim_at(page, kind, u64::MAX) else { return };
            let cuts = (0..length).step_by((length / points(8)).max(1) as usize);
            println!("{kind:?}: killed at {} of {length} instructions", cuts.clone().count());
            for cut in cuts {
                println!("{kind:?}: instruction {cut} of {length}");
                survivor.kill_victim_at(page, kind, cut);
            }
        }
        survivor.close();
    });
}

struct Survivor {
    node: Node,
    channel: Channel,
}

impl Survivor {
    fn new() -> Self {
        let mut node = Node::new(0, 8192);
        let channel = Channel::new(node.context);
        assert_eq!((ibv_destroy_qp(node.qp), ibv_destroy_cq(node.cq)), (0, 0));
        node.cq = ibv_create_cq(node.context, 64, ptr::null_mut(), channel.handle, 0);
        node.qp = create_qp(node.pd, node.cq, node.cq, CAP);
        node.psn = node.qpn() & 0xffff;
        open_up(&mut node);
        Self { node, channel }
    }

    /// A new victim that has connected, has made one whole post, and is stopped before the next
    /// one. `None`, and the test is skipped: processes may not trace their children here.
    fn start_victim(&self, page: &Page, kind: (u32, bool)) -> Option<Child> {
        // SAFETY: the child uses the library and ends without handlers.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            run_victim(page, kind);
        }
        let peer = page.wait_for(1);
        self.node.connect(&peer, &TERMS);
        for _ in 0..RECEIVES {
            self.node.recv(1, &[self.node.sge(0, 64)]);
        }
        page.publish(&self.node.address(), 2);
        assert_eq!(self.node.next().status, OK, "of the whole post");
        page.turn.store(0, SeqCst);
        let child = Child::stopped(pid);
        if child.is_none() {
            skipped("permission to trace a child process");
        }
        child
    }

    /// A victim makes one whole post and is killed at instruction `cut` of the next. Returns how
    /// many it executed; `None` as [`Self::start_victim`].
    fn kill_victim_at(&self, page: &Page, kind: (u32, bool), cut: u64) -> Option<u64> {
        let victim = self.start_victim(page, kind)?;
        self.take_all();
        Channel::arm(self.node.cq);
        let steps = victim.take_steps(cut);
        victim.kill();
        self.end_exchange();
        Some(steps)
    }

    /// Takes all completions and events.
    fn take_all(&self) {
        while self.node.poll().is_some() {}
        while self.channel.has_event(0) {
            self.channel.take_event();
        }
    }

    /// After the victim's end: all that is posted fails or is flushed.
    fn end_exchange(&self) {
        let mut left = RECEIVES - 1;
        // A request that was refused has put our QP into the error state; then its receives are
        // flushed without a request.
        let is_broken = self.node.state() == ERR;
        if !is_broken {
            self.node.send(Work { id: 2, ..WORK });
            left += 1;
        }
        while left != 0 {
            assert!(
                self.channel.has_event(TIME_LIMIT.as_millis() as i32),
                "no event; {left} to come"
            );
            self.channel.take_event();
            Channel::arm(self.node.cq);
            while let Some(wc) = self.node.poll() {
                let good = if wc.wr_id == 2 { [RETRY_EXC, FLUSH] } else { [OK, FLUSH] };
                assert!(good.contains(&wc.status), "{wc:?}");
                left -= 1;
            }
        }
        assert_eq!(self.node.state(), ERR);
        assert_eq!(to_state(self.node.qp, RESET), 0);
    }

    fn close(self) {
        let Node { context, pd, cq, qp, mr, .. } = self.node;
        assert_eq!((ibv_destroy_qp(qp), ibv_dereg_mr(mr), ibv_destroy_cq(cq)), (0, 0, 0));
        self.channel.close();
        assert_eq!((ibv_dealloc_pd(pd), ibv_close_device(context)), (0, 0));
    }
}

/// Registers the memory anew, for atomics too.
fn open_up(node: &mut Node) {
    assert_eq!(ibv_dereg_mr(node.mr), 0);
    node.mr =
        ibv_reg_mr(node.pd, node.memory.as_mut_ptr().cast(), node.memory.len(), ALL_ACCESS | 8);
    assert!(!node.mr.is_null());
}

/// The child's part.
fn run_victim(page: &Page, (opcode, is_bad): (u32, bool)) -> ! {
    let mut node = Node::new(1, 8192);
    open_up(&mut node);
    page.publish(&node.address(), 1);
    let peer = page.wait_for(2);
    node.connect(&peer, &TERMS);
    node.send(Work { opcode: SEND, sges: &[node.sge(0, 8)], ..WORK });
    assert_eq!(node.next().status, OK);
    let mut sge = node.sge(0, 8);
    let key = if is_bad { 0x00ff_ff01 } else { peer.rkey };
    let mut wr = SendWr {
        wr_id: 1,
        next: ptr::null_mut(),
        sg_list: &raw mut sge,
        num_sge: 1,
        opcode,
        flags: SIGNALED,
        imm: 0,
        remote_addr: peer.addr + 4096,
        // Atomics have their operands first.
        rkey: if opcode == FETCH_ADD { 1 } else { key },
        rest: [0, key, 0],
    };
    // SAFETY: lets the parent trace this thread, and stops for it.
    unsafe {
        if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
            libc::_exit(1);
        }
        libc::raise(libc::SIGSTOP);
    }
    let rc = post_send(node.qp, &raw mut wr, &mut ptr::null_mut());
    // SAFETY: stops again, and ends this process without handlers.
    unsafe {
        if rc == 0 {
            libc::raise(libc::SIGSTOP);
        }
        libc::_exit(1)
    }
}

/// A victim that is traced.
struct Child(i32);

impl Child {
    /// Child `pid` stops; `None`: it ends, because it cannot be traced.
    fn stopped(pid: i32) -> Option<Self> {
        let child = Self(pid);
        libc::WIFSTOPPED(child.wait()).then_some(child)
    }

    fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: waits for our child.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) }, self.0);
        status
    }

    /// Lets it execute so many instructions, or up to the end of its post. Returns how many.
    fn take_steps(&self, most: u64) -> u64 {
        let is_over = || {
            // SAFETY: our child, which is stopped.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.0, 0, 0) }, 0);
            let status = self.wait();
            assert!(libc::WIFSTOPPED(status), "its post fails: {status:#x}");
            libc::WSTOPSIG(status) == libc::SIGSTOP
        };
        (0..most).find(|_| is_over()).unwrap_or(most)
    }

    fn kill(self) {
        // SAFETY: our child, for which nobody has waited yet.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        assert!(libc::WIFSIGNALED(self.wait()));
    }
}
