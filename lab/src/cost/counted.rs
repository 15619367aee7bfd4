//! What the software device has counted for one process, out of `softrnic stat --json`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};

/// All counts of the queue pairs and completion queues that a process has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    /// Send work requests, and the calls that posted them.
    pub(crate) requests: u64,
    pub(crate) doorbells: u64,
    /// Requests with inline data.
    pub(crate) inline: u64,
    /// Requests whose data the card reads from memory, and these bytes.
    pub(crate) gathered: u64,
    pub(crate) gathered_bytes: u64,
    /// Requests that the card reads from the queue, and their bytes.
    pub(crate) fetched: u64,
    pub(crate) fetched_bytes: u64,
    /// Bytes of requests that the driver writes to the card.
    pub(crate) pushed_bytes: u64,
    /// Messages that were acknowledged, their packets and bytes, and those with immediate data.
    pub(crate) messages: u64,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) immediates: u64,
    /// Receive work requests, and the calls that posted them.
    pub(crate) receives: u64,
    pub(crate) receive_posts: u64,
    /// Calls of `ibv_poll_cq`, those that found something, and what they found.
    pub(crate) polls: u64,
    pub(crate) fruitful_polls: u64,
    pub(crate) completions: u64,
    /// Calls that post or poll, and for which mlx5 takes a lock.
    pub(crate) locks: u64,
}

/// What a queue pair was asked to have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Capacities {
    pub(crate) sends: u64,
    pub(crate) receives: u64,
    pub(crate) send_elements: u64,
    pub(crate) receive_elements: u64,
    pub(crate) inline: u64,
    /// The operations that it was made for: bit n is `ibv_wr_opcode` n. `None`: that was not said.
    pub(crate) operations: Option<u64>,
}

/// The queues of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Queues {
    pub(crate) queue_pairs: Vec<Capacities>,
    /// Entries of each completion queue.
    pub(crate) completion_queues: Vec<u64>,
}

/// A process as the device sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) counted: Counted,
    pub(crate) queues: Queues,
    /// Commands to the card's firmware so far, by kind.
    pub(crate) commands: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct QueuePair {
    capacities: Capacities,
    counters: Value,
    work: Value,
}

#[derive(Deserialize)]
struct CompletionQueue {
    entries: u64,
    polls: u64,
    fruitful_polls: u64,
    completions: u64,
    locks: u64,
}

impl Seen {
    /// What `text` says of process `pid`.
    ///
    /// # Errors
    /// [`Error::Unreadable`] if it is not what this version of the device prints.
    pub(crate) fn parse(text: &str, pid: u32) -> Result<Self> {
        let stat: Value = serde_json::from_str(text).map_err(|e| unreadable(&e))?;
        let of_process = |entry: &&Value| entry["pid"] == pid;
        let mut seen = Self::default();
        let process = stat["processes"].as_array().into_iter().flatten().find(of_process);
        let commands = process.map_or(Value::Null, |process| process["commands"].clone());
        seen.commands = serde_json::from_value(commands).map_err(|e| unreadable(&e))?;
        for device in stat["devices"].as_array().into_iter().flatten() {
            for entry in device["queue_pairs"].as_array().into_iter().flatten().filter(of_process) {
                seen.add_queue_pair(serde_json::from_value(entry.clone()).map_err(|e| unreadable(&e))?)?;
            }
            for entry in device["completion_queues"].as_array().into_iter().flatten().filter(of_process) {
                seen.add_completion_queue(&serde_json::from_value(entry.clone()).map_err(|e| unreadable(&e))?);
            }
        }
        Ok(seen)
    }

    fn add_queue_pair(&mut self, pair: QueuePair) -> Result<()> {
        let number = |of: &Value, name: &str| {
            of[name].as_u64().ok_or_else(|| Error::Unreadable(format!("softrnic stat has no {name} of a queue pair")))
        };
        let work = |name: &str| number(&pair.work, name);
        let c = &mut self.counted;
        c.requests += work("requests")?;
        c.doorbells += work("doorbells")?;
        c.inline += work("inline")?;
        c.gathered += work("gathered")?;
        c.gathered_bytes += work("gathered_bytes")?;
        c.fetched += work("fetched")?;
        c.fetched_bytes += work("fetched_bytes")?;
        c.pushed_bytes += work("pushed_bytes")?;
        c.packets += work("packets")?;
        c.immediates += work("immediates")?;
        c.receives += work("receives")?;
        c.receive_posts += work("receive_posts")?;
        c.locks += work("locks")?;
        c.messages += number(&pair.counters, "messages")?;
        c.bytes += number(&pair.counters, "bytes")?;
        self.queues.queue_pairs.push(pair.capacities);
        Ok(())
    }

    fn add_completion_queue(&mut self, queue: &CompletionQueue) {
        self.counted.polls += queue.polls;
        self.counted.fruitful_polls += queue.fruitful_polls;
        self.counted.completions += queue.completions;
        self.counted.locks += queue.locks;
        self.queues.completion_queues.push(queue.entries);
    }
}

impl Counted {
    /// What was counted after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            doorbells: self.doorbells - before.doorbells,
            inline: self.inline - before.inline,
            gathered: self.gathered - before.gathered,
            gathered_bytes: self.gathered_bytes - before.gathered_bytes,
            fetched: self.fetched - before.fetched,
            fetched_bytes: self.fetched_bytes - before.fetched_bytes,
            pushed_bytes: self.pushed_bytes - before.pushed_bytes,
            messages: self.messages - before.messages,
            packets: self.packets - before.packets,
            bytes: self.bytes - before.bytes,
            immediates: self.immediates - before.immediates,
            receives: self.receives - before.receives,
            receive_posts: self.receive_posts - before.receive_posts,
            polls: self.polls - before.polls,
            fruitful_polls: self.fruitful_polls - before.fruitful_polls,
            completions: self.completions - before.completions,
            locks: self.locks - before.locks,
        }
    }
}

fn unreadable(problem: &serde_json::Error) -> Error {
    Error::Unreadable(format!("softrnic stat: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_all_queues_of_one_process() {
        let pair = |pid: u32, n: u64| {
            serde_json::json!({
                "pid": pid,
                "capacities": { "sends": n, "receives": 1, "send_elements": 1, "receive_elements": 1, "inline": 0 },
                "counters": { "messages": n, "bytes": 8 * n },
                "work": {
                    "requests": n, "doorbells": n, "inline": 0, "gathered": n, "gathered_bytes": 8 * n, "fetched": 0,
                    "fetched_bytes": 0, "pushed_bytes": 64 * n, "packets": n, "immediates": n, "receives": 0,
                    "receive_posts": 0, "locks": 4 * n,
                },
            })
        };
        let queue = |pid: u32, n: u64| {
            serde_json::json!({
                "pid": pid, "entries": 511, "polls": 2 * n, "fruitful_polls": n, "completions": n, "locks": 2 * n,
            })
        };
        let stat = serde_json::json!({
            "processes": [{ "pid": 7, "commands": { "create_qp": 2 } }, { "pid": 8, "commands": { "create_qp": 9 } }],
            "devices": [
                { "queue_pairs": [pair(7, 1), pair(8, 100)], "completion_queues": [queue(7, 1), queue(8, 100)] },
                { "queue_pairs": [pair(7, 10)], "completion_queues": [queue(7, 10)] },
            ],
        });
        let seen = Seen::parse(&stat.to_string(), 7).expect("it is understood");
        let Counted { requests, bytes, polls, fruitful_polls, locks, .. } = seen.counted;
        assert_eq!((requests, bytes, polls, fruitful_polls, locks), (11, 88, 22, 11, 66));
        assert_eq!(seen.queues.queue_pairs.iter().map(|pair| pair.sends).collect::<Vec<_>>(), [1, 10]);
        assert_eq!(seen.queues.completion_queues, [511, 511]);
        assert_eq!(seen.commands["create_qp"], 2);
        let before = Counted { requests: 1, ..Counted::default() };
        assert_eq!(seen.counted.since(&before).requests, 10);
        let old = serde_json::json!({ "devices": [{ "queue_pairs": [{ "pid": 7 }] }] });
        assert!(Seen::parse(&old.to_string(), 7).is_err(), "an older device counts nothing of this");
    }
}
