//! What softrnic does where devices differ is what docs/rxe.md says. The other column is tested in the virtual machine.

use testkit::softrnic::Softrnic;

#[test]
fn softrnic_is_as_its_column_says() {
    Softrnic::new().alone(|| crate::common::table::compare(1));
}
