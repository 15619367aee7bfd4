//! Receives of several messages, some of which have arrived when a port fails.

use crate::common::are_all;
use crate::common::prelude::*;
use crate::fabric::{Fabric, applied, recoveries, run};

const MEMBERS: usize = 8;
const BYTES: usize = 8 << 10;

struct Groups {
    out: Region,
    into: Region,
    link: PeerConn,
}

impl Groups {
    fn open(worker: &mut WorkerCtx) -> Result<Self> {
        let transport = plugin_transport()?;
        let device = worker.rank().min(transport.devices()? - 1);
        let link = PeerConn::open(worker, &transport, device)?;
        let memory = || Buffer::new(MEMBERS * BYTES).map(Arc::new);
        let (out, into) = (link.send.register(&memory()?)?, link.recv.register(&memory()?)?);
        Ok(Self { out, into, link })
    }

    /// One group each way. The messages are sent in another order than they are received; the last
    /// ones after the first have arrived.
    fn exchange(&self, worker: &WorkerCtx, round: usize) -> Result<()> {
        let mut deadline = worker.deadline("a group");
        let seed = |rank: usize, member: usize| 2 * (round * MEMBERS + member) + rank;
        let length = |member: usize| BYTES - 7 * member;
        self.into.memory().set(0, MEMBERS * BYTES, 0xee)?;
        let places: Vec<_> = (0..MEMBERS)
            .map(|member| RecvBuffer {
                region: &self.into,
                offset: member * BYTES,
                len: BYTES,
                tag: member as i32,
            })
            .collect();
        let receive = posted(&mut deadline, || self.link.recv.receive_group(&places))?;
        for part in [[5, 1, 7, 0], [2, 6, 4, 3]] {
            let mut sends = Vec::new();
            for member in part {
                self.out
                    .memory()
                    .write(member * BYTES, &pattern(seed(worker.rank(), member), length(member)))?;
                let send = || {
                    self.link.send.send(&self.out, member * BYTES, length(member), member as i32)
                };
                sends.push(posted(&mut deadline, send)?);
            }
            for send in sends {
                finished(&mut deadline, send, &mut [0])?;
            }
        }
        let mut sizes = [-1; MEMBERS];
        finished(&mut deadline, receive, &mut sizes)?;
        for (member, size) in sizes.iter().enumerate() {
            let expected = pattern(seed(1 - worker.rank(), member), length(member));
            assert_eq!(*size as usize, expected.len(), "message {member} of group {round}");
            let got = self.into.memory().read(member * BYTES, BYTES)?;
            assert!(
                got[..expected.len()] == expected[..],
                "message {member} of group {round} is wrong"
            );
            assert!(are_all(&got[expected.len()..], 0xee), "bytes past message {member}");
        }
        Ok(())
    }
}

/// The port falls after three messages of the eighth group, and after six of the twentieth.
fn all_groups_arrive(fabric: Fabric) -> Result<()> {
    let rules = "port-down=20ms device=softrnic0 opcode=write-imm message=59 times=1; \
                 drop attempts=all device=softrnic1 opcode=write-imm message=90.. for=100ms";
    run(fabric, &[("SOFTRNIC_FAULTS", rules)], |worker| {
        let groups = Groups::open(worker)?;
        (0..60).try_for_each(|round| groups.exchange(worker, round))?;
        worker.barrier()?;
        assert!(applied().iter().all(|(_, count)| *count > 0), "{:?}", applied());
        assert!(recoveries() > 0 || worker.rank() == 1, "{}", log());
        worker.barrier()
    })
}

cases! { Result<()>;
    the_messages_of_a_group_that_have_not_arrived_are_sent_again_on_one_rail =>
        all_groups_arrive(Fabric::OneRail);
    the_messages_of_a_group_that_have_not_arrived_are_sent_again_on_two_rails =>
        all_groups_arrive(Fabric::TwoRails);
}
