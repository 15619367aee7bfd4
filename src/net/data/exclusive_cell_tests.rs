//! Threads in one cell.

use super::exclusive_cell::{BegunCall, ExclusiveCell, FirstStep, Occupant};
use crate::error::Result;
use crate::net::data::state_word::StateWord;
use crate::net::data::sync::{enable_barrier, has_barrier};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn cell<T>(state: T) -> ExclusiveCell<T> {
    enable_barrier();
    ExclusiveCell::new(state, &Arc::default())
}

#[test]
fn the_second_caller_gets_an_error() {
    let cell = cell(1);
    let inside = |state: &mut i32| {
        *state += 1;
        assert!(cell.enter(|_| Ok(())).is_err());
        Ok(*state)
    };
    assert_eq!(cell.enter(inside), Ok(2));
    assert_eq!(cell.enter(inside), Ok(3));
}

#[test]
fn a_visitor_and_nccls_thread_wait_for_each_other() {
    let cell = cell(0u64);
    // Miri takes a millisecond for each.
    let times = if cfg!(miri) { 200 } else { 20_000 };
    let increment = |state: &mut u64| {
        *state += 1;
        Ok(())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| (0..times).for_each(|_| cell.visit(increment).expect("it waits")));
        scope.spawn(|| (0..times).for_each(|_| cell.enter(increment).expect("it waits")));
    });
    assert_eq!(cell.enter(|state| Ok(*state)), Ok(2 * times));
}

#[test]
fn two_visitors_disturb_neither_each_other_nor_nccls_thread() {
    let (cell, is_over) = (cell(0), AtomicBool::new(false));
    let resumes = || !is_over.load(Ordering::Relaxed);
    let increment = |state: &mut usize| *state += 1;
    let visit = |state: &mut usize| {
        increment(state);
        // Long enough for both other threads to arrive.
        std::thread::sleep(Duration::from_micros(50));
        Ok(())
    };
    let enter = |state: &mut usize| {
        increment(state);
        Ok(())
    };
    let visits = if cfg!(miri) { 30 } else { 300 };
    let (tried, entered) = std::thread::scope(|scope| {
        let tries = scope.spawn(|| {
            std::iter::from_fn(|| resumes().then(|| cell.try_visit(increment))).flatten().count()
        });
        let enters = scope.spawn(|| {
            std::iter::from_fn(|| resumes().then(|| cell.enter(enter).expect("it waits"))).count()
        });
        (0..visits).for_each(|_| cell.visit(visit).expect("it waits"));
        is_over.store(true, Ordering::Relaxed);
        (tries.join().expect("it does not panic"), enters.join())
    });
    let entered = entered.expect("NCCL's thread waits for visitors");
    assert_eq!(cell.enter(|state| Ok(*state)), Ok(visits + tried + entered));
    assert_eq!(cell.enter(|_| Ok(cell.try_visit(|_| ()))), Ok(Err(Occupant::Nccl)));
    assert_eq!(cell.visit(|_| Ok(cell.try_visit(|_| ()))), Ok(Err(Occupant::Visitor)));
}

#[test]
fn nobody_can_enter_after_a_panic() {
    let cell = cell(());
    let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
        cell.enter(|()| -> Result<()> { panic!("on purpose") })
    }));
    assert!(panicked.is_err());
    assert!(cell.enter(|()| Ok(())).is_err());
}

#[test]
fn nccls_thread_gets_an_error_after_a_visitor_has_panicked() {
    let cell = cell(());
    let look = || cell.try_visit(|()| panic!("on purpose"));
    assert!(panic::catch_unwind(AssertUnwindSafe(look)).is_err());
    assert!(cell.enter(|()| Ok(())).is_err(), "it does not wait for ever");
    assert_eq!(cell.try_visit(|()| ()), Err(Occupant::Nccl));
}

#[test]
fn the_first_thread_enters_by_the_fast_path_until_another_one_enters() {
    if !enable_barrier() {
        println!("skipped: the kernel refuses membarrier");
        return;
    }
    let cell = cell(0);
    assert_eq!(cell.enter_if_clear(|state| *state), None, "there is no owner yet");
    let increment = |state: &mut i32| {
        *state += 1;
        Ok(*state)
    };
    assert_eq!(cell.enter(increment), Ok(1));
    assert_eq!(cell.enter_if_clear(increment), Some(Ok(2)));
    assert_eq!(cell.visit(increment), Ok(3), "visitors do not change that");
    assert_eq!(cell.enter_if_clear(increment), Some(Ok(4)));
    let other = || (cell.enter_if_clear(|_| ()).is_none(), cell.enter(increment));
    let seen = std::thread::scope(|scope| scope.spawn(other).join().expect("it does not panic"));
    assert_eq!(seen, (true, Ok(5)));
    assert_eq!(cell.enter_if_clear(increment), None);
    assert_eq!(cell.enter(increment), Ok(6));
}

#[test]
fn a_cell_entered_before_the_kernel_allows_the_barrier_has_the_fast_path_afterwards() {
    let cell = ExclusiveCell::new((), &Arc::default());
    let nothing = || cell.enter(|()| Ok(()));
    if !enable_barrier() {
        assert_eq!((nothing(), nothing()), (Ok(()), Ok(())));
        // Another test of this process may have asked meanwhile.
        assert!(cell.enter_if_clear(|()| ()).is_none() || has_barrier());
    }
    let is_allowed = enable_barrier();
    assert_eq!(nothing(), Ok(()));
    assert_eq!(cell.enter_if_clear(|()| ()).is_some(), is_allowed);
}

#[test]
fn the_fast_path_is_closed_while_the_peers_state_is_not_0_or_the_owner_is_inside() {
    let is_allowed = enable_barrier();
    let word = Arc::new(StateWord::default());
    let cell = ExclusiveCell::new((), &word);
    let nothing = || cell.enter(|()| Ok(()));
    assert_eq!(nothing(), Ok(()));
    word.set_peer(1);
    assert_eq!((cell.enter_if_clear(|()| ()), nothing()), (None, Ok(())));
    word.set_peer(0);
    assert_eq!(cell.enter_if_clear(|()| ()).is_some(), is_allowed);
    let inside = |()| (nothing().is_err(), cell.try_visit(|()| ()), cell.enter_if_clear(|()| ()));
    if let Some(seen) = cell.enter_if_clear(|()| inside(())) {
        assert_eq!(seen, (true, Err(Occupant::Nccl), None));
    }
    assert_eq!(nothing(), Ok(()));
}

#[test]
fn a_call_stays_inside_between_its_first_step_and_the_next_one_only() {
    if !enable_barrier() {
        println!("skipped: the kernel refuses membarrier");
        return;
    }
    let cell = cell(7);
    let is_done = || matches!(cell.begin(|_| FirstStep::Done), BegunCall::Done);
    assert_eq!((is_done(), cell.enter(|_| Ok(())), is_done()), (false, Ok(()), true));
    assert_eq!(cell.try_visit(|state| *state), Ok(7));
    assert!(matches!(cell.begin(|_| FirstStep::Other), BegunCall::Other));
    assert_eq!(cell.try_visit(|state| *state), Ok(7));
    let BegunCall::Next(inside) = cell.begin(|_| FirstStep::Next) else { panic!("it has left") };
    assert_eq!(cell.try_visit(|state| *state), Err(Occupant::Nccl));
    assert_eq!(inside.resume(|state| Ok(*state), |_, error| error), Ok(7));
    assert_eq!(cell.try_visit(|state| *state), Ok(7));
}

#[test]
fn nobody_can_enter_after_a_panic_on_the_fast_path() {
    let mut cell = cell(());
    assert_eq!(cell.enter(|()| Ok(())), Ok(()));
    assert!(cell.get_mut().is_some());
    let panicking = || cell.enter(|()| -> Result<()> { panic!("on purpose") });
    assert!(panic::catch_unwind(AssertUnwindSafe(panicking)).is_err());
    assert!(cell.enter(|()| Ok(())).is_err() && cell.enter_if_clear(|()| ()).is_none());
    assert_eq!(cell.try_visit(|()| ()), Err(Occupant::Nccl));
    assert!(cell.get_mut().is_none());
}
