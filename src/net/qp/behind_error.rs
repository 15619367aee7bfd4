//! Handling of completions behind an error.

use crate::error::Result;

/// Calls `handle` for a successful completion, unless the connection cannot continue. Arrivals
/// count even if a device refused an earlier work request, since the connection may resume over new
/// queue pairs. `outcome` becomes the most significant error.
#[inline(always)]
pub(super) fn handle_unless_over(outcome: &mut Result<()>, handle: impl FnOnce() -> Result<()>) {
    if outcome.as_ref().is_err_and(|e| !e.is_recoverable) {
        return;
    }
    let handled = handle();
    if outcome.is_ok() || handled.as_ref().is_err_and(|e| !e.is_recoverable) {
        *outcome = handled;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn completions_behind_a_refused_work_request_count_and_behind_a_fatal_error_do_not() {
        let refused = |text: &str| Err(Error::internal(text).recoverable());
        let mut handled = 0;
        let mut outcome = refused("first");
        let mut handle = |outcome: &mut _, result: Result<()>| {
            handle_unless_over(outcome, || {
                handled += 1;
                result
            });
        };
        handle(&mut outcome, Ok(()));
        handle(&mut outcome, refused("second"));
        assert_eq!(outcome, refused("first"));
        handle(&mut outcome, Err(Error::internal("fatal")));
        assert_eq!(outcome, Err(Error::internal("fatal")));
        handle(&mut outcome, Ok(()));
        assert_eq!(handled, 3);
    }
}
