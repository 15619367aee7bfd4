//! The explainer's thread: it asks, answers and reports.

use super::explainer::{Explainer, NumberedEnd, State};
use super::json::json;
use super::output;
use super::set_up::{self, SetUp};
use super::socket;
use super::text::{self, EndName, Report};
use crate::host::sysfs;
use crate::proto::control::Time;
use crate::proto::explain::inquiry::{EndId, Message};
use crate::proto::explain::message::{Answer, Question};
use crate::proto::frame::{Frame, Kind};
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Frames within this time are handled in one check of the ends.
const SAME_LOOK: Duration = Duration::from_millis(50);
/// How often to check the ends and ask peers while looking for a cause.
const STEP: Duration = Duration::from_millis(250);
/// The shortest interval between log lines about a peer that waits for this process.
const SAY_EVERY: Duration = Duration::from_secs(60);

impl Explainer {
    /// Does everything that is due. Returns when there is more to do.
    pub(super) fn inquire(&self) -> Option<Instant> {
        let ends = self.ends();
        let frames = self.take_inbox();
        let is_asked = |end| frames.contains_key(&(end, true));
        let (mut state, now) = self.check_ends(&ends, SAME_LOOK, is_asked);
        handle_frames(&mut state, now, frames, &ends);
        let (set_ups, _) = self.set_ups(&mut state, now);
        state.handle_time(now, &set_ups);
        if state.asking.is_some() || !state.requests.is_empty() {
            state.inquiry.ask(now);
        }
        let next = state.inquiry.advance(now);
        let messages: Vec<_> = std::iter::from_fn(|| state.inquiry.poll_message()).collect();
        let ended = state.ended.take();
        let owed = self.owed(&mut state, now, &ends);
        let report = self.report(&mut state, now, &ends);
        let set_up_report = self.set_up_report(&mut state, &set_ups);
        let notes = std::mem::take(&mut state.notes);
        let wants_socket = state.opening.take();
        let answer = self.answer(&mut state, now, &ends, set_ups);
        let is_asking = state.asking.is_some() || !state.requests.is_empty();
        drop(state);
        for (number, message) in messages {
            send(&ends, number, &message);
        }
        // From here on without the lock and the ends: the rest may block, and NCCL may close the
        // ends meanwhile.
        drop(ends);
        if wants_socket {
            self.open_socket();
        }
        if let Some(line) = ended {
            log::warn!("{line}");
        }
        if let Some(line) = owed {
            log::warn!("{line}");
        }
        notes.iter().for_each(|note| log::info!("{note}"));
        for report in report.iter().chain(&set_up_report) {
            output::write(report, &self.folder);
        }
        if let Some((streams, report)) = answer {
            socket::answer(streams, &json(&report, sysfs::host_name()));
        }
        if is_asking { Some(self.instant(now + STEP)) } else { next.map(|next| self.instant(next)) }
    }

    /// The report that is due, once the cause is known or the search has taken long enough.
    fn report(&self, state: &mut State, now: Time, ends: &[NumberedEnd]) -> Option<Report> {
        let since = state.asking?;
        let age = state.inquiry.longest_wait(now).unwrap_or_default();
        if state.report_times.limit().is_none_or(|limit| age < limit) {
            state.asking = None;
            return None;
        }
        if !state.inquiry.is_settled(now, since) {
            return None;
        }
        state.asking = None;
        state.report_times.handle_report(age);
        state.reports += 1;
        let report = new_report(state, now, ends);
        state.said = report.text();
        Some(report)
    }

    /// The report about connection set-up, if due.
    fn set_up_report(&self, state: &mut State, set_ups: &[SetUp]) -> Option<Report> {
        let is_due = std::mem::take(&mut state.is_set_up_due);
        let age = set_up::longest(set_ups).filter(|_| is_due)?;
        state.set_up_times.handle_report(age);
        state.reports += 1;
        let limit = state.set_up_times.limit().unwrap_or_default();
        let report = Report::without_messages(state.inquiry.me(None), state.reports, limit);
        Some(report.with_set_ups(set_ups.to_vec(), self.is_limit_set))
    }

    /// The programs that requested a report, and the report, once the cause is known or there is
    /// none.
    fn answer(
        &self,
        state: &mut State,
        now: Time,
        ends: &[NumberedEnd],
        set_ups: Vec<SetUp>,
    ) -> Option<(Vec<UnixStream>, Report)> {
        let is_waiting = state.inquiry.longest_wait(now).is_some();
        if state.requests.is_empty()
            || is_waiting && !state.inquiry.is_settled(now, state.requested)
        {
            return None;
        }
        let report = new_report(state, now, ends).with_set_ups(set_ups, self.is_limit_set);
        Some((std::mem::take(&mut state.requests), report))
    }

    /// The log line about a peer that waits for this process, if due.
    fn owed(&self, state: &mut State, now: Time, ends: &[NumberedEnd]) -> Option<String> {
        let limit = state.report_times.limit()?;
        if state.said_owed.is_some_and(|said| now < said + SAY_EVERY) {
            return None;
        }
        let owed = state.inquiry.owed(now, limit)?;
        state.said_owed = Some(now);
        find(ends, owed.id).map(|end| text::owed(&owed, &EndName::of(end.as_ref())))
    }
}

fn new_report(state: &State, now: Time, ends: &[NumberedEnd]) -> Report {
    let name =
        |number: EndId| find(ends, number).map(|end| EndName::of(end.as_ref())).unwrap_or_default();
    Report::new(
        &state.inquiry,
        now,
        state.reports,
        state.report_times.limit().unwrap_or_default(),
        name,
    )
}

fn find(ends: &[NumberedEnd], number: EndId) -> Option<&Arc<dyn super::end::ExplainedEnd>> {
    let at = ends.binary_search_by_key(&number, |(number, _)| *number).ok()?;
    ends.get(at).map(|(_, end)| end)
}

/// Drops an invalid frame: the connection does not depend on it.
fn handle_frames(
    state: &mut State,
    now: Time,
    frames: BTreeMap<(EndId, bool), Frame>,
    ends: &[NumberedEnd],
) {
    for ((number, is_question), frame) in frames {
        let handled = if is_question {
            Question::parse(&frame.body)
                .map(|question| state.inquiry.handle_question(now, number, &question))
        } else {
            Answer::parse(&frame.body).map(|answer| {
                let rank =
                    if let Answer::Stands(standing) = &answer { standing.me.rank } else { None };
                if let Some((end, rank)) = find(ends, number).zip(rank) {
                    end.peer().peer().set_rank(rank);
                }
                state.inquiry.handle_answer(now, number, answer);
            })
        };
        if let Err(violation) = handled {
            log::debug!("invalid {:?} frame: {violation}", frame.kind);
        }
    }
}

fn send(ends: &[NumberedEnd], number: EndId, message: &Message) {
    let Some(end) = find(ends, number) else { return };
    let (kind, body) = match message {
        Message::Question(question) => (Kind::WaitQuestion, question.body()),
        Message::Answer(answer) => (Kind::WaitAnswer, answer.body()),
    };
    end.peer().stream().send(kind, body);
}
