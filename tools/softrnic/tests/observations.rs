//! What softrnic does where devices differ is what docs/rxe.md says. The other column is tested in the virtual machine.

mod common;

use common::process::alone;

#[test]
fn softrnic_is_as_its_column_says() {
    alone("softrnic_is_as_its_column_says", &[], || common::table::compare(1));
}
