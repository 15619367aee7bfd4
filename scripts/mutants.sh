#!/usr/bin/env bash
# Plants bugs in the protocol, one at a time, and has the simulators find each: a check that the check works. The sources
# are changed in copies, and built without the rest of the plugin. Ends with 1 if a bug was not found, or does not fit the sources any
# more.
#
#   scripts/mutants.sh           all
#   scripts/mutants.sh WORDS     those whose description has these words
#   scripts/mutants.sh --fits    only tells which fit the sources
#
# JOBS is how many are planted at once, by default one for each processor.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
[ $# -le 1 ] || die "usage: scripts/mutants.sh [WORDS | --fits]"
only_fits='' words=${1:-}
if [ "$words" = --fits ]; then
    only_fits=1 words=''
else
    setup_build
    install_nextest
fi
JOBS=${JOBS:-$(nproc)}

# The bugs, at the same place of each list.
files=() olds=() news=() whats=()
# plant FILE OLD NEW WHAT: the bug is that NEW stands for the first OLD, a fixed text.
plant() {
    [[ $4 == *"$words"* ]] || return 0
    files+=("$1") olds+=("$2") news+=("$3") whats+=("$4")
}

# In the flows.
plant cts_window.rs "+ count <= self.limit as usize" "+ count <= RING_SLOTS" "more messages are expected than there are receives or slots for"
plant recv.rs "if arrived < expected" "if arrived < expected.min(2)" "a receive completes before its last stripe"
plant requests.rs "lengths[usize::from(index) % MAX_GROUP]" "lengths[usize::from(index) % 2]" "the lengths of a group are mixed up"
plant cts_window.rs "} else {
            self.is_urgent = true;" "} else {
            self.is_urgent = false;" "clear-to-sends that are held back are forgotten"
plant recv.rs "u32::from(n) << 16 | self.length" "u32::from(n) << 15 | self.length" "a length of two halves is put together wrongly"
plant send.rs "length.min(cts.length)" "length" "more is written than there is room for"
plant send.rs "cts.tag == tag)" "cts.tag >= tag)" "a message goes into the buffer of another tag"
plant send.rs "let mut kept = (0..known)" "let mut kept = (0..known).rev()" "messages of one tag overtake each other"
plant send.rs "request.pending_stripes.add(-1);" "request.pending_stripes.set(0);" "a send completes with its first stripe"
plant send.rs "usize::from(rail) - Cts::KEYS" "Cts::KEYS + 1 - usize::from(rail)" "the key of another rail is used"
plant stripe.rs "before == all { length }" "before == all { length - length % 2 }" "the last byte stays behind"
plant stripe.rs "as u32 * LL128_LINE_BYTES" "as u32 * (LL128_LINE_BYTES / 2)" "a line of 128 bytes is cut"
plant requests.rs "self.first_free = entry.next_free.get()" "self.first_free = entry.next_free.get() % 200" "a request that is in use is given out again"

# In what is done around them when something fails, as sim/sender.rs, sim/receiver.rs and sim/control.rs have it.
plant sim/outside.rs "completion.status == Status::Success" "matches!(completion.status, Status::Success | Status::Flushed)" "work requests that are flushed count as delivered"
plant sim/outside.rs "completion.status == Status::Success" "completion.status != Status::RetryExceeded" "only an exhausted retry counts as a failure"
plant sim/sender.rs "if state >= PeerState::Closed" "if state > PeerState::Broken" "a clear-to-send is used after the connection has failed"
plant sim/receiver.rs "if outside.control.state(End::Receiver) >= PeerState::Closed" "if outside.control.state(End::Receiver) > PeerState::Broken" "a receive is posted after the connection has failed"
plant sim/sender.rs "PeerState::Broken;" "PeerState::Closed || outside.control.state(End::Sender) == PeerState::Broken;" "a peer that closes in good order fails what it has received"
plant sim/sender.rs "self.flow.is_idle() && self.probes == 0" "false" "the sender does not ask whether the peer is there"
plant sim/receiver.rs "if state == PeerState::Lost" "if false" "the receiver does not ask whether the peer is there"
plant sim/receiver.rs "let polled = self.poll(outside);" "let polled = if state >= PeerState::Closed { Ok(0) } else { self.poll(outside) };" "what has arrived before the peer closed is not polled"
plant sim/control.rs "self.say(end, Some(Cause::PeerFailed));" "" "the peer is not told of a failure"
plant sim/control.rs "if side.state == PeerState::Broken" "if false" "the peer is not told of a failure on the next control connection"
plant sim/world.rs "self.sending.swap_remove(i);" "if self.causes[0].is_none() { self.sending.swap_remove(i); }" "an error ends a request twice"
plant sim/fabric.rs "requester.delayed.pop_front()?" "requester.delayed.front()?.clone()" "a delayed write is executed twice"

# In the control plane.
plant control/conn.rs "self.streams.get(secret).copied()" "self.streams.values().next().copied()" "a frame goes to another stream"
plant control/conn.rs "drain(..count.min(self.outgoing.len()))" "clear()" "what the kernel does not take at once is forgotten"
plant control/redial.rs "const REFUSALS: u32 = 3;" "const REFUSALS: u32 = 1;" "two refusals are a death"
plant control/plane/frames.rs "stream.imply_commit();" "" "a commit that is lost with its control connection is missed"
plant control/plane/frames.rs "attempt <= stream.attempt" "false" "an attempt that was given up takes a connection over"
plant control/plane/frames.rs "found.attach(secret, id);" "" "a connection that goes on hears nothing"
plant control/plane/ends.rs "peer.waiting.insert(id);" "" "a connection that is lost waits for nothing"
plant control/stream.rs "if *end == End::Closed {" "if false {" "a close that nothing follows is taken for a loss"
plant control/plane/requests.rs "Some(lost) => self.end_conn(now, lost, End::Lost(\"the peer has lost it\".into()))," "Some(_) => {}" "a peer that is asked to dial does not"
plant control/plane/requests.rs "_ if is_old => {}" "_ if false => {}" "a request that comes late ends a control connection that stands"
plant control/redial.rs "true => self.refusals.have_lasted(now, DOUBT_LIMIT)," "true => self.refusals.tell_of_death(now)," "a firewall that refuses is taken for a death"
plant control/plane/ends.rs "is_lost && stream.has_replied" "false" "a connection that is lost before it is accepted is given up"
plant control/plane/sockets.rs "self.resume_all(address, conn);" "" "a new control connection is not made use of"
plant control/plane/frames.rs "found.stage = Stage::Unauthenticated;" "" "a stream that the peer has closed costs the others an attempt"
plant control/plane/frames.rs "conn.backlog() < conn.max_backlog() + MAX_BACKLOG" "conn.backlog() < MAX_BACKLOG / 2" "a stream that goes on is not answered"
plant control/plane/frames.rs "self.transmit(conn, &Frame::text(Kind::Goodbye, secret, &why));" "" "the peer of an unexpected frame is not told"
plant control/stream.rs "!std::mem::replace(&mut self.has_commit, true)" "!self.is_committed()" "a commit that was taken is implied again"
plant frame.rs "self.bytes[CHECKSUM] != checksum" "false && self.bytes[CHECKSUM] != checksum" "a frame with a wrong secret is taken"

# In the recovery of a connection.
plant recovery/machine/transitions.rs "QueuePairs::InUse => self.job" "QueuePairs::InUse if self.role == Role::Receiver => self.queue_pairs = QueuePairs::None, QueuePairs::InUse => self.job" "the receiver lists what is missing before it is fenced"
plant recovery/machine/transitions.rs "QueuePairs::InUse => self.job" "QueuePairs::InUse if self.role == Role::Sender => self.queue_pairs = QueuePairs::None, QueuePairs::InUse => self.job" "the sender makes an offer before it is fenced"
plant recovery/machine/transitions.rs "self.due.ask = true;" "self.due.ask = true; self.handle_heard(now, self.questions);" "queue pairs that work are given up before the peer has answered"
plant recovery/machine/transitions.rs "self.due.discard = true;" "" "queue pairs of an attempt that was given up stay"
plant recovery/machine/mod.rs "if attempt < self.attempt {" "if false {" "a frame of an earlier attempt is obeyed"
plant recovery/machine/mod.rs "State::Creating && attempt == self.attempt" "State::Creating || attempt != self.attempt" "queue pairs of an earlier attempt are offered"
plant recovery/machine/mod.rs "self.due.ports |= is_partial;
                self.due.frame = self.frame.is_some();" "self.due.ports |= is_partial;" "the account is not said again on the next control connection"
plant recovery/machine/mod.rs "self.due.halt = true;
                self.due.frame = self.frame.is_some();" "self.due.halt = true;" "an offer, an answer or a ready is not said again on the next control connection"
plant recovery/machine/mod.rs "State::Running | State::Draining { .. } => self.due.ports = true," "State::Running | State::Draining { .. } => {}" "the peer is not told that a rail is back"
plant recovery/machine/transitions.rs "_ if self.trouble.as_ref().is_some_and(is_over) => self.fail(now)," "_ if false => self.fail(now), _ if self.trouble.as_ref().is_some_and(is_over) => {}" "a connection without a path is never given up"
plant recovery/machine/transitions.rs "if self.arrived != Some(self.arriving) || self.has_usable_changed {" "if false {" "a connection is given up although messages arrive"
plant recovery/machine/transitions.rs "if self.arrived != Some(self.arriving) || self.has_usable_changed {" "if true {" "recoveries after which nothing arrives go on for ever"
plant recovery/machine/transitions.rs "self.pause = now + pause(trouble.attempts.saturating_sub(ahead));" "" "attempts follow each other without a pause"
plant recovery/machine/mod.rs "self.trouble = None;
            self.take_in(now);" "self.take_in(now);" "an idle connection with a rail over which nothing comes through is given up"
plant recovery/machine/transitions.rs "trouble.since = now;
        }" "}" "the receiver gives an idle connection up because the sender tries a rail again and again"
plant recovery/machine/transitions.rs "self.state == State::Resuming && self.attempt == attempt" "self.attempt == attempt" "queue pairs of an attempt that has been ended come into use"
plant recovery/rail_history.rs "0 | 1 => Duration::ZERO" "0..=9 => Duration::ZERO" "a rail that falls often is taken in at once"
plant recovery/receiver.rs "arrival.reset();" "" "what has arrived of a missing message still counts"
plant recv.rs "*self = Self::new(self.request, self.index, self.posted);" "*self = Self { qps: self.qps, ..Self::new(self.request, self.index, self.posted) };" "the queue pairs over which some of a missing message came still count"
plant recv.rs "*self = Self::new(self.request, self.index, self.posted);" "*self = Self { stripes: self.stripes, ..Self::new(self.request, self.index, self.posted) };" "the stripes that came of a missing message still count"
plant recv.rs "*self = Self::new(self.request, self.index, self.posted);" "*self = Self { known: self.known, length: self.length, ..Self::new(self.request, self.index, self.posted) };" "the length that came of a missing message still counts"
plant recovery/receiver.rs "if arrival.is_pending() {" "if arrival.is_pending() || !missing.is_empty() {" "a message that has arrived is listed"
plant recovery/receiver.rs "if arrival.is_pending() {" "if arrival.is_pending() && arrival.stripes == 0 {" "a message of which a part has arrived is not listed"
plant recovery/receiver.rs "if arrival.is_pending() {" "if arrival.is_pending() && self.window.is_sent(slot.index()) {" "a message whose clear-to-send was held back is not listed"
plant recovery/receiver.rs "Account { oldest, next, missing }" "Account { oldest, next: next.wrapping_add(1), missing }" "an account is one message too long"
plant recovery/receiver.rs "Account { oldest, next, missing }" "Account { oldest, next: next.wrapping_sub(1), missing }" "an account is one message too short"
plant recovery/receiver.rs "self.striping = striping;" "" "the receiver expects the stripes of earlier queue pairs"
plant recovery/receiver.rs "self.keep_rails();" "" "the rails of what had arrived before are forgotten"
plant cts_window.rs "(self.unsent, self.outstanding) = (self.next, missing);" "self.outstanding = missing;" "clear-to-sends that an account has told are written again"
plant recovery/account.rs "to.u16(cts.seq.wrapping_sub(self.oldest) as u16)" "to.u16(cts.seq.saturating_sub(self.oldest) as u16)" "sequence numbers of an account do not wrap"
plant recovery/sender.rs "request.pending_stripes.set(striping.stripe_count(replay.length) as i32);" "let _ = request;" "a request whose message is missing is complete"
plant recovery/sender.rs "replays.push(Replay { request: id, addr: request.addr.get(), length, missing: *missing });" "if request.is_pending() { replays.push(Replay { request: id, addr: request.addr.get(), length, missing: *missing }); }" "a message that was acknowledged and is missing is not sent again"
plant recovery/sender.rs "return Err(Unapplied::Lost { seq: cts.seq });" "continue;" "a message that is lost is passed over"
plant recovery/sender.rs "head = cts.seq;" "" "clear-to-sends of an account are not used"
plant recovery/sender.rs "(self.striping, self.weights) = (striping, weights);" "self.weights = weights;" "the sender cuts messages for earlier queue pairs"
plant recovery/sender.rs "self.requests.live().for_each(|(_, request)| request.pending_stripes.set(0));" "" "sends stay incomplete when the receiver has closed in good order"
plant recovery/replay.rs "self.extra[cts.seq as usize % RING_SLOTS] = (cts.seq, *extra);" "let _ = extra;" "the keys of an account are not used"
plant stripe.rs "self.numbers.at(self.place_of(qp))" "self.place_of(qp)" "the place of a rail is taken for its number"
plant sim/recovery/worker.rs "completion.status == Status::Success" "completion.status == Status::RetryExceeded" "completions that come while queue pairs are fenced are passed over"

[ "${#files[@]}" -gt 0 ] || die "no planted bug is described with '$words'"

# As few processes as there are copies. More schedules than with every change.
export CARGO_BUILD_JOBS=1 NEXTEST_TEST_THREADS=1 CARGO_INCREMENTAL=1 FERRITE_SIM_SEEDS=2000
# Each bug is found, or not, without what an earlier one has left.
export PROPTEST_MAX_SHRINK_ITERS=0 PROPTEST_DISABLE_FAILURE_PERSISTENCE=true
# Each copy has a folder of its own for what it builds.
unset CARGO_TARGET_DIR CARGO_PROFILE_DEV_DEBUG
# A bug that takes memory without end does not take all of the machine's.
ulimit -v $((8 << 20))

# simulate COPY: 0: all tests pass, 100: one fails, 101: it does not compile (nextest's exit codes).
simulate() {
    (cd "$1" && cargo nextest run --profile planted --cargo-quiet proto::sim proto::recovery proto::control proto::frame) >"$1/log" 2>&1
}

# verdict COPY NUMBER: plants a bug in a copy and prints what becomes of it.
verdict() {
    local copy=$1 file=$1/src/proto/${files[$2]} what=${whats[$2]} code=0
    cp "$file" "$copy/kept"
    OLD=${olds[$2]} NEW=${news[$2]} perl -0pi -e 's/\Q$ENV{OLD}\E/$ENV{NEW}/' "$file"
    if cmp -s "$file" "$copy/kept"; then
        echo "DOES NOT FIT  $what (${files[$2]}: ${olds[$2]})"
    elif [ -n "$only_fits" ]; then
        echo "fits          $what"
    else
        simulate "$copy" || code=$?
        case $code in
        0) echo "MISSED        $what" ;;
        100)
            # A test that is ended for the time that it takes has noticed nothing.
            if grep -q panicked "$copy/log"; then
                echo "found         $what: $(grep -m 1 -A 1 panicked "$copy/log" | tail -n 1 | sed 's/^ *//' | cut -c 1-80)"
            else
                echo "NOT TRIED     $what: a test was ended"
            fi
            ;;
        101) echo "DOES NOT FIT  $what: $(grep -m 1 '^error' "$copy/log")" ;;
        *) echo "NOT TRIED     $what: cargo nextest has ended with $code" ;;
        esac
    fi
    cp "$copy/kept" "$file"
}

# lane NUMBER: every JOBS-th bug from this one on, in a copy of its own.
lane() {
    local copy=$copies/$1 bug
    scripts/protocol_alone.sh "$copy"
    [ -n "$only_fits" ] || simulate "$copy" || die "the simulators fail without a bug: $(tail -n 5 "$copy/log")"
    for ((bug = $1; bug < ${#files[@]}; bug += JOBS)); do verdict "$copy" "$bug" | tee -a "$copies/verdicts"; done
}

copies=$(mktemp -d)
end() {
    local running group
    running=$(jobs -pr)
    for group in $running; do
        kill -- "-$group" 2>/dev/null || true
        # It writes into its copy until it has ended.
        while kill -0 -- "-$group" 2>/dev/null; do sleep 0.1; done
    done
    rm -rf "$copies"
}
trap end EXIT
# Each lane is a process group, which is ended as a whole.
set -m
for ((number = 0; number < JOBS && number < ${#files[@]}; number++)); do
    lane "$number" </dev/null &
done
while [ "$number" -gt 0 ]; do
    wait -n || die "not all planted bugs have been tried"
    number=$((number - 1))
done

good=found said="are found"
[ -z "$only_fits" ] || good=fits said="fit the sources"
count=$(grep -c "^$good " "$copies/verdicts" || true)
echo "$count of ${#files[@]} planted bugs $said"
[ "$count" = "${#files[@]}" ]
