//! The paths of the software device (`SOFTRNIC_PATHS`) as the model sees them, so that both can be held against each other.

use std::net::Ipv6Addr;

use crate::ecmp::connection::{Connection, DEPTH, Limits};
use crate::ecmp::fair::{Fair, Path};
use crate::ecmp::hash::{mix, port_of_queue_pairs};
use crate::ecmp::policy::Policy;
use crate::error::{Error, Result};

/// Bytes of a message: shares are learnt from such and larger ones.
const BYTES: u32 = 64 << 10;
/// Messages of each connection after which shares are learnt.
const MESSAGES: u64 = 2000;
/// Rates are computed anew so often while a message would be sent over all paths at once.
const STEPS_OF_A_MESSAGE: f64 = 8.0;

/// Which of so many paths the packets of a queue pair without a flow label take, from the first of `addresses` (GIDs) and number of
/// `queue_pairs` to the second. `paths` is not 0.
pub fn path_of(addresses: [Ipv6Addr; 2], queue_pairs: [u32; 2], paths: u32) -> u32 {
    let words = addresses.map(u128::from).into_iter().flat_map(|address| [(address >> 64) as u64, address as u64]);
    let state = words.fold(0, |state, word| mix(state ^ word));
    let port = port_of_queue_pairs(queue_pairs[0], queue_pairs[1]);
    (mix(state ^ u64::from(port)) % u64::from(paths)) as u32
}

/// The shares that lanes end with, by connection and lane: `lanes` are their paths, and `speeds` those of the paths in bytes in a
/// microsecond. All connections are of one port, and send all the time.
///
/// # Errors
/// [`Error::Contract`] if the plugin's code refuses something.
pub fn shares(lanes: &[Vec<usize>], speeds: &[f64]) -> Result<Vec<Vec<f64>>> {
    let new = |lanes: &Vec<usize>| Connection::new(Policy::Shares(lanes.len() as u8));
    let mut connections: Vec<Connection> = lanes.iter().map(new).collect();
    send_all(&mut connections, lanes, speeds, (0.0, MESSAGES))?;
    Ok(connections.iter().map(Connection::shares).collect())
}

/// Bytes in a microsecond of a connection that sends all the time, as a policy of `ferrite ecmp` has it, over queue pairs on these paths.
///
/// # Errors
/// There is no such policy; [`Error::Contract`] if the plugin's code refuses something.
pub fn rate(policy: &str, lanes: &[usize], speeds: &[f64]) -> Result<f64> {
    let mut connections = [Connection::new(policy.parse().map_err(Error::Usage)?)];
    let lanes = [lanes.to_vec()];
    // Shares are learnt in the first half.
    let half = send_all(&mut connections, &lanes, speeds, (0.0, MESSAGES))?;
    let end = send_all(&mut connections, &lanes, speeds, (half, 2 * MESSAGES))?;
    Ok(MESSAGES as f64 * f64::from(BYTES) / (end - half))
}

/// All connections send from time `now` on until each has sent so many messages in all. When that is; us.
fn send_all(
    connections: &mut [Connection],
    lanes: &[Vec<usize>],
    speeds: &[f64],
    (mut now, messages): (f64, u64),
) -> Result<f64> {
    let step = f64::from(BYTES) / speeds.iter().sum::<f64>() / STEPS_OF_A_MESSAGE;
    let mut fair = Fair::default();
    while connections.iter().any(|connection| connection.completed < messages) {
        share_paths(connections, lanes, speeds, &mut fair);
        for connection in &mut *connections {
            let limits =
                Limits { begun: connection.completed + DEPTH, posted: connection.delivered + DEPTH, bytes: BYTES };
            connection.advance(now, now + step, limits).map_err(|e| Error::Contract(e.to_string()))?;
        }
        now += step;
    }
    Ok(now)
}

/// Gives each lane that has something to send its max-min fair rate.
fn share_paths(connections: &mut [Connection], lanes: &[Vec<usize>], speeds: &[f64], fair: &mut Fair) {
    let all =
        || lanes.iter().enumerate().flat_map(|(number, paths)| paths.iter().enumerate().map(move |at| (number, at)));
    let busy: Vec<(usize, usize, Path)> = all()
        .filter(|(number, (lane, _))| connections[*number].is_busy(*lane))
        .map(|(number, (lane, path))| (number, lane, Path::new(&[*path])))
        .collect();
    let paths: Vec<Path> = busy.iter().map(|(.., path)| *path).collect();
    all().for_each(|(number, (lane, _))| connections[number].set_rate(lane, 0.0));
    for ((number, lane, _), rate) in busy.iter().zip(fair.rates(speeds, &paths)) {
        connections[*number].set_rate(*lane, rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: three lanes on paths of their own, one of which has a fifth of the speed of the others.
    #[test]
    fn shares_follow_the_speeds_of_paths() {
        let found = shares(&[vec![0, 1, 2]], &[1e4, 2e3, 1e4]).expect("the protocol holds");
        let [first, slow, last] = found[0][..] else { panic!("{found:?}") };
        assert!(slow < 0.5 * first && slow < 0.5 * last, "{found:?}");
        assert!((first + slow + last - 1.0).abs() < 1e-9, "{found:?}");
    }

    /// By hand: two queue pairs on a path of 1e4 have half of it each, and with even parts or in turn the third one goes as fast as they
    /// do; with shares it has all of its own.
    #[test]
    fn rates_follow_the_path_that_most_share_or_the_sum_of_all() {
        let rate = |policy| rate(policy, &[0, 0, 1], &[1e4, 1e4]).expect("the protocol holds");
        assert!((1.4e4..1.52e4).contains(&rate("even:3")), "{}", rate("even:3"));
        assert!((1.4e4..1.52e4).contains(&rate("turns:3")), "{}", rate("turns:3"));
        assert!((1.8e4..2.0e4).contains(&rate("shares:3")), "{}", rate("shares:3"));
    }

    #[test]
    fn lanes_on_one_path_of_two_have_less_than_one_that_is_alone() {
        let found = shares(&[vec![0, 0, 1]], &[1e4, 1e4]).expect("the protocol holds");
        assert!(found[0][2] > 1.3 * found[0][0] && found[0][2] > 1.3 * found[0][1], "{found:?}");
    }
}
