//! Joining a fabric and leaving it.

use std::sync::atomic::Ordering::{Acquire, SeqCst};

use crate::limits::PROCS;
use crate::process::fabric::Fabric;
use crate::process::settings::Settings;
use crate::rules::environment::load_env;
use crate::shm::file::{Failure, SharedFile};
use crate::shm::process_id::{id_of, slot_of};
use crate::shm::slots::{PROC_ALIVE, PROC_EXITING};

impl Fabric {
    /// Joins the fabric that the environment names.
    pub(crate) fn attach() -> Result<&'static Self, Failure> {
        let settings = Settings::from_env().map_err(|what| (what, libc::EINVAL))?;
        let file = SharedFile::open(&settings.shm_dir, &settings.fabric)?;
        let mut fabric = Self::on(file, settings)?;
        fabric.me = fabric.join()?;
        Ok(Box::leak(Box::new(fabric)))
    }

    /// Takes a process slot, with the control lock that opening left us.
    fn join(&self) -> Result<u32, Failure> {
        let control = self.file.assume_control();
        self.reap_dead(&control);
        let free = (0..PROCS).find(|&i| self.proc(i).id.load(Acquire) == 0 && self.file.hold(i));
        let Some(index) = free else {
            return Err((
                format!("the fabric has its {PROCS} processes; set SOFTRNIC_FABRIC to another"),
                libc::EUSERS,
            ));
        };
        let slot = self.proc(index);
        let id = id_of(index, slot.generation.fetch_add(1, SeqCst).wrapping_add(1));
        slot.life.store(0, SeqCst);
        // SAFETY: getpid has no preconditions.
        slot.pid.store(unsafe { libc::getpid() }, SeqCst);
        slot.jobs.store(0, SeqCst);
        slot.ways.store(0, SeqCst);
        slot.obstacle.store(0, SeqCst);
        slot.port_queries.store(0, SeqCst);
        slot.commands.iter().for_each(|count| count.store(0, SeqCst));
        slot.id_at.store((&raw const slot.id) as u64, SeqCst);
        slot.id.store(id, SeqCst);
        // Under the control lock, or the next process would take the file for a stale one.
        slot.state.store(PROC_ALIVE, SeqCst);
        load_env(self, &control, &self.topology, self.settings.faults.as_deref(), self.settings.seed)?;
        Ok(id)
    }

    /// The process is about to exit: the last one removes the file. All still works until it is really gone.
    pub(crate) fn leave(&self) {
        let _control = self.file.control();
        self.proc(slot_of(self.me)).state.store(PROC_EXITING, SeqCst);
        if !(0..PROCS).any(|index| index != slot_of(self.me) && self.takes_part(index)) {
            self.file.unlink();
        }
    }
}
