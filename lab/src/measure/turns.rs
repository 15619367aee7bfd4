//! Two transports in one pair of processes, which take turns: blocks of about a millisecond of the
//! one and of the other, over the same memory and the same devices.
//!
//! What lasts longer than a block changes both of two neighbouring blocks: another clock rate, or a
//! neighbour that fills the caches. What is shorter hits one of many pairs. Blocks come in fours,
//! A B B A or B A A B by chance: so no side is ahead by its place. If both are alike, a ratio is as
//! likely above 1 as below it, whatever the machine did.

use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::measure::metric::{Key, Metric};
use crate::measure::plan::{DEPTH, word};
use crate::measure::sample;
use crate::measure::stream::{self, Bench};
use crate::pair::worker_ctx::{LABELS, WorkerCtx};
use crate::system::host;
use crate::transport::instance::Transport;

/// How long a block should be.
const BLOCK_S: f64 = 6e-4;
/// Messages or round trips of a block, at least and at most.
const MESSAGES: (u64, u64) = (16, 1_000_000);
/// Connections of a block that makes one after the other.
const SINGLES: u32 = 4;
/// Connections that are pending at a time, at most: NCCL connects 128 peers a round.
pub(crate) const PENDING: u32 = 128;
/// Undisturbed pairs of blocks that are enough for a set. More blocks are measured until there are
/// as many.
const ENOUGH: usize = 4;
/// A row that has taken this long gets no more blocks.
const LONG: Duration = Duration::from_millis(100);
/// If no more than this many pairs of a set were undisturbed, the disturbed ones count as well.
const FEW: usize = 1;

/// The blocks of a row over one set of connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turns {
    /// The row.
    #[serde(flatten)]
    pub key: Key,
    /// The side of each block: `ABBABAAB`.
    pub order: String,
    /// What was measured in each block, in the unit of the metric.
    pub values: Vec<f64>,
    /// Whether the kernel took a processor away in the block, at either end.
    pub disturbed: Vec<bool>,
}

impl Turns {
    /// The logarithm of B over A: the median over all pairs of neighbouring blocks. Pairs in which
    /// a block was disturbed are left out, both blocks alike.
    pub fn log_ratio(&self) -> Option<f64> {
        let sides = self.order.as_bytes().chunks_exact(2);
        let values = self.values.chunks_exact(2);
        let pairs: Vec<(f64, bool)> = sides
            .zip(values)
            .zip(self.disturbed.chunks_exact(2))
            .map(|((sides, values), disturbed)| {
                let later = values[1].ln() - values[0].ln();
                (if sides[0] == b'A' { later } else { -later }, disturbed[0] || disturbed[1])
            })
            .filter(|(ratio, _)| ratio.is_finite())
            .collect();
        let all = pairs.iter().filter(|(_, disturbed)| !disturbed).count() <= FEW;
        let mut counted: Vec<f64> = pairs
            .iter()
            .filter(|(_, disturbed)| all || !disturbed)
            .map(|(ratio, _)| *ratio)
            .collect();
        sample::median(&mut counted)
    }

    /// The values of the blocks of `side`.
    pub fn of(&self, side: u8) -> impl Iterator<Item = f64> {
        let blocks = self.order.bytes().zip(&self.values);
        blocks.filter(move |(letter, _)| *letter == side).map(|(_, value)| *value)
    }
}

/// After this time, the work that a transport starts in threads of its own is done: the kernel's
/// permission to use `membarrier` takes some 10 ms.
pub(crate) const START: Duration = Duration::from_millis(30);

/// One of the transports in this process.
#[derive(Debug)]
pub(crate) struct Side<'t> {
    pub(crate) transport: &'t Transport,
    pub(crate) device: usize,
}

/// Measures `rows` over one set of connections; both processes call it. The results are on rank 0.
///
/// # Errors
/// Those of the transports.
pub(crate) fn measure(
    worker: &mut WorkerCtx,
    sides: &[Side<'_>],
    rows: &[Key],
    (seed, rounds, streams): (u64, usize, usize),
) -> Result<Vec<Turns>> {
    let mut dice = Dice { seed, thrown: 0 };
    let memory = (0..streams)
        .map(|_| {
            let bytes = memory_for(rows);
            Ok([worker.buffer(bytes)?.into(), worker.buffer(bytes)?.into()])
        })
        .collect::<Result<Vec<_>>>()?;
    let mut benches: Vec<Vec<Bench>> = sides.iter().map(|_| Vec::new()).collect();
    let mut places: Vec<usize> = (0..sides.len()).collect();
    if dice.coin() {
        places.reverse();
    }
    if rows.iter().any(|row| row.bytes > 0) {
        for place in places {
            let Side { transport, device } = &sides[place];
            worker.enter_side(place)?;
            for memory in &memory {
                benches[place].push(Bench::over(worker, transport, *device, memory)?);
            }
        }
        thread::sleep(START);
    }
    let mut all = Vec::new();
    for key in rows {
        worker.begin(format!("in {}", key.name()))?;
        all.extend(row(worker, sides, &benches, (*key, rounds), &mut dice)?);
    }
    worker.begin("closing")?;
    for (place, benches) in benches.into_iter().enumerate() {
        worker.enter_side(place)?;
        benches.into_iter().try_for_each(Bench::close)?;
    }
    Ok(all)
}

/// The blocks of one row; on rank 1 none.
fn row(
    worker: &mut WorkerCtx,
    sides: &[Side<'_>],
    benches: &[Vec<Bench>],
    (key, rounds): (Key, usize),
    dice: &mut Dice,
) -> Result<Option<Turns>> {
    let one = |worker: &mut WorkerCtx, place: usize, count: u64| {
        worker.enter_side(place)?;
        block(worker, &sides[place], &benches[place], key, count)
    };
    let mut places: Vec<usize> = (0..sides.len()).collect();
    if dice.coin() {
        places.reverse();
    }
    let count = match key.metric {
        Metric::SetupOne | Metric::SetupMany => {
            for place in places {
                one(worker, place, 1)?;
            }
            1
        }
        _ => {
            // Once cold, then timed: the same number for both sides.
            let mut seconds = 0.0;
            for place in places {
                one(worker, place, MESSAGES.0)?;
                let start = Instant::now();
                one(worker, place, MESSAGES.0)?;
                seconds += start.elapsed().as_secs_f64();
            }
            let each = seconds / MESSAGES.0 as f64 / sides.len() as f64;
            worker.agree(((BLOCK_S / each) as u64).clamp(MESSAGES.0, MESSAGES.1))?
        }
    };
    let (mut order, mut values, mut disturbed) = (String::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    loop {
        let (mut mine, stolen) = (Vec::new(), host::stolen_ticks(worker.cpu()));
        for _ in 0..key.metric.info().blocks / 4 * rounds {
            let places = match (sides.len(), dice.coin()) {
                (1, _) => [0; 4],
                (_, true) => [0, 1, 1, 0],
                (_, false) => [1, 0, 0, 1],
            };
            for place in places {
                let switches = host::involuntary_switches();
                values.push(one(worker, place, count)?);
                mine.push(u8::from(host::involuntary_switches() != switches));
                order.push(char::from(LABELS[place]));
            }
        }
        if host::stolen_ticks(worker.cpu()) != stolen {
            mine.fill(1);
        }
        // The last one: whether rank 0 has time for more. So both processes do the same.
        mine.push(u8::from(start.elapsed() < LONG));
        let theirs = worker.exchange(&mine)?;
        let has_time = if worker.rank() == 0 { mine.last() } else { theirs.last() } == Some(&1);
        let both = mine.iter().zip(&theirs).map(|(mine, theirs)| mine + theirs > 0);
        disturbed.extend(both.take(mine.len() - 1));
        let calm = disturbed.chunks_exact(2).filter(|pair| **pair == [false, false]).count();
        // A set-up waits for threads, and so is disturbed by itself.
        if calm >= ENOUGH || !has_time || key.bytes == 0 {
            break;
        }
    }
    Ok((worker.rank() == 0).then_some(Turns { key, order, values, disturbed }))
}

/// One block; the value counts on rank 0.
fn block(
    worker: &mut WorkerCtx,
    side: &Side<'_>,
    benches: &[Bench],
    key: Key,
    count: u64,
) -> Result<f64> {
    let set_up = |worker: &mut WorkerCtx, counts| {
        stream::set_up(worker, side.transport, side.device, counts)
    };
    match key.metric {
        Metric::Latency => stream::half_round_trip(worker, &benches[0], key.bytes as usize, count),
        Metric::MessageRate | Metric::Bandwidth => {
            let flow = (key.bytes as usize, key.direction);
            let rate = stream::rate(worker, benches, flow, count)?;
            let unit = key.metric.info().rate;
            let unit = unit.ok_or(Error::Misuse("a metric that no stream measures"))?;
            Ok(unit(rate, key.bytes as f64))
        }
        Metric::SetupOne => Ok(set_up(worker, (SINGLES, 1))? / f64::from(SINGLES)),
        Metric::SetupMany => set_up(worker, (key.depth, key.depth.min(PENDING))),
    }
}

/// Bytes of each region that the largest of the rows needs.
fn memory_for(rows: &[Key]) -> usize {
    let need = |row: &Key| DEPTH as usize * (row.bytes as usize).next_multiple_of(4096).max(4096);
    rows.iter().map(need).max().unwrap_or(0)
}

/// The same throws in both processes.
struct Dice {
    seed: u64,
    thrown: u64,
}

impl Dice {
    fn coin(&mut self) -> bool {
        self.thrown += 1;
        word(self.seed, self.thrown) >> 63 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::metric::Direction;

    fn turns(order: &str, values: &[f64], disturbed: &[usize]) -> Turns {
        let key = Key { metric: Metric::Latency, bytes: 8, direction: Direction::Both, depth: 1 };
        let disturbed = (0..values.len()).map(|at| disturbed.contains(&at)).collect();
        Turns { key, order: order.into(), values: values.into(), disturbed }
    }

    #[test]
    fn neighbours_are_paired_whichever_comes_first() {
        let found = turns("ABBABAAB", &[1.0, 2.0, 4.0, 2.0, 6.0, 3.0, 5.0, 10.0], &[]);
        assert!((found.log_ratio().expect("pairs") - 2.0_f64.ln()).abs() < 1e-12);
        assert_eq!(found.of(b'B').collect::<Vec<_>>(), [2.0, 4.0, 6.0, 10.0]);
    }

    #[test]
    fn a_disturbed_block_takes_its_neighbour_with_it() {
        let values = [1.0, 2.0, 90.0, 1.0, 2.0, 1.0, 1.0, 90.0];
        let ratio = |disturbed: &[usize]| {
            turns("ABBABAAB", &values, disturbed).log_ratio().expect("pairs").exp()
        };
        assert!((ratio(&[2, 7]) - 2.0).abs() < 1e-9);
        assert!(ratio(&[]) > 10.0);
        // Where nearly all are disturbed, all count.
        assert!(ratio(&[0, 2, 5]) > 10.0);
    }

    #[test]
    fn both_processes_throw_the_same_and_sides_come_first_equally_often() {
        let throws = |seed| {
            let mut dice = Dice { seed, thrown: 0 };
            (0..1000).map(|_| dice.coin()).collect::<Vec<bool>>()
        };
        assert_eq!(throws(7), throws(7));
        let heads = throws(7).into_iter().filter(|coin| *coin).count();
        assert!((420..580).contains(&heads), "{heads}");
    }
}
