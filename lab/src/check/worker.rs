//! One of the two processes of a step.

use crate::check::context::{Context, StepJob};
use crate::check::outcome::StepResult;
use crate::check::point::{Point, Trial};
use crate::check::points;
use crate::error::{Error, Result};
use crate::pair::worker_ctx::WorkerCtx;

/// The hidden subcommand that makes one of the two processes of this program.
pub(crate) const WORKER: &str = "check-worker";

/// The body of the hidden subcommand `check-worker`; the exit code.
pub(crate) fn main() -> i32 {
    WorkerCtx::main(WORKER, |worker| {
        let job: StepJob = worker.receive_job()?;
        let result = run_step(worker, &job)?;
        worker.report(&result)?;
        // A step may be about the end of the other process, so neither ends before both have their results.
        worker.barrier()
    })
}

fn run_step(worker: &mut WorkerCtx, job: &StepJob) -> Result<StepResult> {
    let point = points::all().into_iter().find(|point| point.number == job.number);
    let Some(Point { name, trial: Trial::Steps(steps), .. }) = point else {
        return Err(Error::Misuse("a point that is not tried"));
    };
    let step = steps.get(job.step).ok_or(Error::Misuse("a point without such a step"))?;
    worker.begin(format!("trying {name}"))?;
    if worker.rank() == 1 {
        for (variable, value) in step.env.rank1_vars {
            // SAFETY: this process has one thread so far, and no library is loaded.
            unsafe { std::env::set_var(variable, value) };
        }
        if step.env.alone {
            return Ok(StepResult::nothing());
        }
    }
    match (step.run)(&mut Context::new(worker, job)) {
        Err(missing @ Error::Missing(_)) => Ok(StepResult::skipped(missing.to_string())),
        result => result,
    }
}
