//! Rules that come while programs run and others are in force.

use crate::common::node::{Terms, Work, local_pair};
use crate::common::verbs::*;
use crate::program::control;
use testkit::softrnic::Softrnic;

#[test]
fn a_rule_that_comes_behind_one_for_others_applies_at_once() {
    let rule = ("SOFTRNIC_FAULTS", "drop flow=99 attempts=all");
    Softrnic::new().envs(&[rule]).alone(|| {
        let (a, _b) = local_pair(16, &Terms { timeout: 7, retry_cnt: 1, ..Terms::default() });
        for rule in [None, Some("drop attempts=all device=softrnic1"), Some("drop attempts=all flow=0")] {
            rule.into_iter().for_each(|rule| drop(control(&["inject", rule])));
            a.send(Work::default());
            let is_struck = rule.is_some_and(|rule| rule.contains("flow=0"));
            assert_eq!(a.next().status, if is_struck { RETRY_EXC } else { OK }, "{rule:?}");
        }
    });
}
