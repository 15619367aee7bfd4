//! What rxe does where devices differ is what the page of the software device says of it.

#[path = "../../softrnic/tests/common/node.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the software device's own tests")]
mod node;
#[path = "../../softrnic/tests/common/observed.rs"]
#[allow(unreachable_pub, reason = "as above")]
mod observed;
#[path = "../../softrnic/tests/common/table.rs"]
#[allow(unreachable_pub, reason = "as above")]
mod table;
#[path = "../../softrnic/tests/common/verbs.rs"]
#[allow(dead_code, unreachable_pub, reason = "as above")]
mod verbs;

use crate::guest::Case;
use lab::error::Result;

pub(crate) fn as_the_page_says(_: &Case) -> Result<()> {
    // SAFETY: this process has no other thread that looks at the environment.
    unsafe { std::env::set_var("SOFTRNIC_TEST_LIBRARY", "libibverbs.so.1") };
    table::compare(2);
    Ok(())
}
