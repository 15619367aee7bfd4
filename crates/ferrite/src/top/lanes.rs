//! The lanes of connections: a table.

use std::fmt::Write;

use super::rates::Row;
use nccl_net::inspect::stats::layout::record;

/// Bytes of a connection from which on it is said of its lanes that they are alike.
const MANY_BYTES: u64 = 10_000_000_000;

/// A line for each sender that has lanes, and how many other senders there are. It is also said how many have lanes in vain.
pub(crate) fn text(rows: &[Row]) -> String {
    let senders = || rows.iter().filter(|row| row.end.is_sender);
    let mut text = format!(
        "{:>5} {:<21} {:<14} {:>8} {:>6} {:>6}  {}\n",
        "RANK", "PEER", "DEVICE", "GB/s", "RECOV", "MOVES", "LANES: SHARE % (GB/s)"
    );
    senders().filter(|row| !row.end.lanes.is_empty()).for_each(|row| text += &line(row));
    let others = senders().filter(|row| row.end.lanes.is_empty()).count();
    if others > 0 {
        let _ = writeln!(
            text,
            "{others} sender(s) with one lane, the default, or that have sent nothing yet (FERRITE_LANES)"
        );
    }
    let alike = senders().filter(|row| are_alike(row)).count();
    if alike > 0 {
        let _ = writeln!(
            text,
            "all lanes alike since the beginning at {alike} sender(s): one path, or a fabric that spreads packets; FERRITE_LANES=1 would cost less"
        );
    }
    text
}

/// Whether the lanes of a connection have all carried as much, to a sixteenth, over many bytes, and none has got another path.
fn are_alike(row: &Row) -> bool {
    let lanes = &row.end.lanes;
    let (least, most) = (lanes.iter().min().copied().unwrap_or(0), lanes.iter().max().copied().unwrap_or(0));
    let has_changed = row.end.counters[record::MOVES] > 0 || row.end.counters[record::RECOVERIES] > 0;
    sum(lanes) >= MANY_BYTES && least >= most / 16 * 15 && !has_changed
}

fn sum(lanes: &[u64]) -> u64 {
    lanes.iter().copied().fold(0, u64::saturating_add)
}

fn line(row: &Row) -> String {
    let end = &row.end;
    let number = |rank: Option<u64>| rank.map_or_else(|| "?".into(), |rank| rank.to_string());
    let mut text = format!(
        "{:>5} {:<21} {:<14} {:>8.2} {:>6} {:>6} ",
        number(row.rank),
        format!("{} {}", number(end.peer.rank), end.peer.host),
        end.device,
        row.bytes_per_second() / 1e9,
        end.counters[record::RECOVERIES],
        end.counters[record::MOVES],
    );
    let all = sum(&row.lane_bytes);
    for bytes in &row.lane_bytes {
        let share = *bytes as f64 / all.max(1) as f64;
        let rate = if row.seconds > 0.0 { *bytes as f64 / row.seconds / 1e9 } else { 0.0 };
        let _ = write!(text, " {:.0} ({rate:.2})", share * 100.0);
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::end::End;
    use crate::top::stats_file::tests::{example, parsed};
    use nccl_net::inspect::stats::layout::HEADER_WORDS;

    /// A row of the example's sender with so many bytes on its lanes in two seconds, of which lanes have moved three times.
    fn row(lane_bytes: &[u64]) -> Row {
        row_with(lane_bytes, 3)
    }

    fn row_with(lane_bytes: &[u64], moves: u64) -> Row {
        let mut words = example();
        words[HEADER_WORDS + record::QP_COUNT] = lane_bytes.len() as u64;
        words[HEADER_WORDS + record::MOVES] = moves;
        words[HEADER_WORDS + record::RECOVERIES] = moves;
        words[HEADER_WORDS + record::LANE_BYTES..][..lane_bytes.len()].copy_from_slice(lane_bytes);
        let file = parsed(&words);
        let (number, record) = file.records().next().expect("one");
        let end = End::new(number, record);
        let (grown, stages) = (end.counters, end.stages);
        let lane_bytes = end.lanes.clone();
        Row { pid: 1, rank: Some(6), end, seconds: 2.0, grown, rail_bytes: Vec::new(), lane_bytes, stages }
    }

    #[test]
    fn a_line_has_the_share_and_the_speed_of_each_lane() {
        let text = text(&[row(&[6_000_000_000, 2_000_000_000])]);
        let line = text.lines().nth(1).expect("a line");
        assert!(line.starts_with("    6 118 n-0412"), "{line:?}");
        assert!(line.ends_with("     3  75 (3.00) 25 (1.00)"), "{line:?}");
    }

    #[test]
    fn lanes_that_are_alike_over_many_bytes_are_said_to_be_of_no_use() {
        let says = |rows: &[Row]| text(rows).contains("all lanes alike since the beginning at 1 sender(s): one path");
        let gb = 1_000_000_000;
        assert!(says(&[row_with(&[5 * gb, 5 * gb], 0)]));
        assert!(says(&[row_with(&[6 * gb, 6 * gb - gb / 4], 0), row_with(&[9 * gb, 5 * gb], 0)]));
        assert!(!says(&[row_with(&[6 * gb, 5 * gb], 0)]), "one is slower");
        assert!(!says(&[row_with(&[4 * gb, 4 * gb], 0)]), "too few bytes");
        assert!(!says(&[row_with(&[5 * gb, 5 * gb], 1)]), "a lane has got another path");
    }

    #[test]
    fn senders_without_lanes_are_counted() {
        let text = text(&[row(&[0, 0])]);
        assert_eq!(
            text.lines().nth(1),
            Some("1 sender(s) with one lane, the default, or that have sent nothing yet (FERRITE_LANES)")
        );
    }
}
