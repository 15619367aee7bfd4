//! How fast the network carries what a sender has under way, whatever the application does.
//!
//! A measurement begins when a message is posted, and ends when it is acknowledged. In this time the network has carried all that was under
//! way then. Pauses of the application between messages are in no measurement: a phase in which it sends less is not a slower network.
//!
//! The more is under way, the less of the time is latency: that alone makes a speed greater, by no more than the factor by which more is
//! under way. So a speed is a gain over another one only if what is under way has not grown by as much as the gain.

/// Measurements that make up a speed: the median counts, so that a few that took long do not.
pub const MEASUREMENTS: usize = 16;

/// One measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes that were under way when it began.
    pub bytes: u64,
    /// How long they took.
    pub ns: u64,
}

/// The speed of a number of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speed {
    /// Bytes a second: the median.
    pub per_second: u64,
    /// Bytes under way: the median.
    pub under_way: u64,
}

/// The latest measurements.
#[derive(Debug, Clone, Default)]
pub struct Speeds {
    carried: [Carried; MEASUREMENTS],
    count: usize,
}

impl Speeds {
    /// Adds one, in the place of the oldest one if there are enough.
    pub fn add(&mut self, carried: Carried) {
        self.carried[self.count % MEASUREMENTS] = carried;
        self.count += 1;
    }

    /// The speed, if there are enough.
    pub fn speed(&self) -> Option<Speed> {
        let median = |of: fn(&Carried) -> u64| {
            let mut all = self.carried.each_ref().map(of);
            all.sort_unstable();
            all[MEASUREMENTS / 2]
        };
        (self.count >= MEASUREMENTS)
            .then(|| Speed { per_second: median(Carried::per_second), under_way: median(|carried| carried.bytes) })
    }
}

impl Carried {
    fn per_second(&self) -> u64 {
        let speed = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.ns.max(1));
        u64::try_from(speed).unwrap_or(u64::MAX)
    }
}

impl Speed {
    /// Whether it is more than `most` / `least` times as fast as `before`, and not since as much more is under way.
    pub fn is_gain(&self, before: &Self, (most, least): (u64, u64)) -> bool {
        let times = |value: u64, factor: u64| u128::from(value) * u128::from(factor);
        times(self.per_second, least) > times(before.per_second, most)
            && times(self.under_way, least) <= times(before.under_way, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAIN: (u64, u64) = (8, 7);

    /// The speed of a path of this latency and bandwidth, in ns and bytes in one of them, with so much under way.
    fn speed(latency: u64, bandwidth: u64, under_way: u64) -> Speed {
        let mut speeds = Speeds::default();
        (0..MEASUREMENTS).for_each(|_| speeds.add(Carried { bytes: under_way, ns: latency + under_way / bandwidth }));
        speeds.speed().expect("enough")
    }

    #[test]
    fn there_is_a_speed_after_enough_measurements_and_long_ones_do_not_count() {
        let mut speeds = Speeds::default();
        for number in 0..MEASUREMENTS {
            assert_eq!(speeds.speed(), None, "{number} measurements");
            let ns = if number % 3 == 0 { 1_000_000_000 } else { 1000 };
            speeds.add(Carried { bytes: 1 << 20, ns });
        }
        assert_eq!(speeds.speed(), Some(Speed { per_second: (1 << 20) * 1_000_000, under_way: 1 << 20 }));
        (0..MEASUREMENTS).for_each(|_| speeds.add(Carried { bytes: 1 << 20, ns: 2000 }));
        assert_eq!(speeds.speed().map(|speed| speed.per_second), Some((1 << 20) * 500_000), "the latest ones count");
        (0..MEASUREMENTS).for_each(|_| speeds.add(Carried { bytes: u64::MAX, ns: 0 }));
        assert_eq!(speeds.speed().map(|speed| speed.per_second), Some(u64::MAX));
    }

    #[test]
    fn more_than_the_gain_is_a_gain_and_as_much_is_not() {
        let at = |per_second| Speed { per_second, under_way: 1 << 20 };
        assert!(at(8001).is_gain(&at(7000), GAIN) && !at(8000).is_gain(&at(7000), GAIN));
        assert!(at(u64::MAX).is_gain(&at(1), GAIN) && !at(1).is_gain(&at(u64::MAX), GAIN));
    }

    /// Twice as much under way is nearly twice as fast where latency is most of the time.
    #[test]
    fn that_more_is_under_way_is_no_gain() {
        for (latency, bandwidth) in [(10_000, 50), (100_000, 50), (1000, 1)] {
            for (before, after) in [(64 << 10, 128 << 10), (64 << 10, 512 << 10), (512 << 10, 590 << 10)] {
                let (before, after) = (speed(latency, bandwidth, before), speed(latency, bandwidth, after));
                assert!(!after.is_gain(&before, GAIN), "{before:?}, then {after:?}");
            }
        }
        assert!(speed(10_000, 50, 128 << 10).per_second > speed(10_000, 50, 64 << 10).per_second * 8 / 7);
        assert!(speed(10_000, 200, 512 << 10).is_gain(&speed(10_000, 50, 512 << 10), GAIN), "a faster network is");
        assert!(speed(1000, 200, 256 << 10).is_gain(&speed(1000, 50, 512 << 10), GAIN), "with less under way, too");
    }
}
