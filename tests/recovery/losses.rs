//! Paths that lose what is sent, or deliver it late or in part, without any device that says so at
//! once.

use crate::fabric::{Fabric, all_arrives, all_arrives_on_each_fabric};
use crate::stream::SHORT;
use lab::error::Result;

all_arrives_on_each_fabric!(
    all_arrives_if_all_that_one_port_sends_is_lost_for_a_while,
    "drop attempts=all device=RANK0 message=60.. for=300ms",
    crate::stream::LONG,
    300
);

all_arrives_on_each_fabric!(
    all_arrives_if_data_is_lost_for_a_while,
    "drop attempts=all opcode=write-imm device=RANK0 message=60.. for=300ms",
    crate::stream::SHORT,
    300
);

// What has arrived is not sent again: it would be written to buffers that are checked after their
// messages are done.
all_arrives_on_each_fabric!(
    nothing_is_sent_twice_if_all_acknowledgements_are_lost_for_a_while,
    "drop-ack attempts=all opcode=write-imm device=RANK0 message=60.. for=300ms",
    crate::stream::SHORT,
    300
);

all_arrives_on_each_fabric!(
    all_arrives_if_clear_to_sends_are_lost_for_a_while,
    "drop attempts=all opcode=write device=RANK1 message=20.. for=300ms",
    crate::stream::SHORT,
    300
);

all_arrives_on_each_fabric!(
    nothing_is_done_twice_if_acknowledgements_of_clear_to_sends_are_lost_for_a_while,
    "drop-ack attempts=all opcode=write device=RANK1 message=20.. for=300ms",
    crate::stream::SHORT,
    300
);

// Data that is sent again, and then comes a second time: the queue pair that it comes for is gone.
all_arrives_on_each_fabric!(
    data_that_is_late_by_100_ms_changes_no_buffer_that_is_used_again,
    "late=100ms attempts=all opcode=write-imm device=RANK0 message=60.. for=200ms",
    crate::stream::SHORT,
    600
);

all_arrives_on_each_fabric!(
    clear_to_sends_that_are_late_by_100_ms_are_not_taken_for_new_ones,
    "late=100ms attempts=all opcode=write device=RANK1 message=20.. for=200ms",
    crate::stream::SHORT,
    600
);

all_arrives_on_each_fabric!(
    a_message_of_which_one_half_has_arrived_is_sent_again,
    "cut=131072 attempts=all opcode=write-imm device=RANK0 message=60 times=4",
    crate::stream::LONG,
    300
);

all_arrives_on_each_fabric!(
    a_clear_to_send_of_which_the_first_word_has_arrived_is_not_read,
    "cut=8 attempts=all opcode=write device=RANK1 message=20 times=4",
    crate::stream::SHORT,
    300
);

all_arrives_on_each_fabric!(
    a_clear_to_send_of_which_half_a_word_has_arrived_is_not_read,
    "cut=20 attempts=all opcode=write device=RANK1 message=20 times=4",
    crate::stream::SHORT,
    300
);

/// On InfiniBand the data of a message comes by other writes than its immediate.
#[test]
fn a_message_is_sent_again_if_its_data_has_arrived_and_its_immediate_has_not() -> Result<()> {
    let rule = "drop attempts=all opcode=write-imm device=softrnic1 message=30.. for=300ms";
    all_arrives(Fabric::TwoInfiniBandRails, rule, SHORT, 300)
}

// The path only pauses: a suspicion does no harm.
all_arrives_on_each_fabric!(
    all_arrives_if_a_path_pauses_for_300_ms,
    "delay=300ms opcode=write-imm device=RANK0 message=60 times=1",
    crate::stream::SHORT,
    300
);
