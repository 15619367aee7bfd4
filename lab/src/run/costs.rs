//! What the messages of a comparison cost the card and its driver, which the software device counts.

use crate::cost::case::Case;
use crate::cost::report::CaseReport;
use crate::cost::runner::CostRequest;
use crate::error::{Error, Result};
use crate::nccl::library::Source;
use crate::run::session::Runner;
use crate::verbs::control::control_of;
use crate::verbs::libibverbs::Verbs;

/// Sizes and messages in flight, over as many queue pairs as the environment says.
const CASES: [(usize, usize); 4] = [(8, 1), (8, 8), (64 << 10, 1), (64 << 10, 8)];

/// Of each of `sources`. Nothing, with a warning, where it cannot be counted: what was measured is kept. Nothing where other devices than the software
/// device are compared.
pub(crate) fn count(sources: &[Source], verbs: &Verbs, runner: &Runner) -> Result<Vec<CaseReport>> {
    let Verbs::Softrnic { folder } = verbs else { return Ok(Vec::new()) };
    let counted = control_of(folder).and_then(|control| {
        let case = |(bytes, depth)| Case { bytes, depth, queue_pairs: 0, rails: 1 };
        let request = CostRequest {
            program: runner.program.clone(),
            control,
            folder: folder.clone(),
            sources: sources.to_vec(),
            cases: CASES.map(case).into(),
            silence: runner.silence,
        };
        request.run(&mut |what| log::debug!("{what}"))
    });
    match counted {
        Err(Error::Interrupted) => Err(Error::Interrupted),
        Err(error) => {
            log::warn!("what messages cost is not in the report: {error}");
            Ok(Vec::new())
        }
        counted => counted,
    }
}
