//! The comparison inside PyTorch, `scripts/ab.py`: its own tests, which need neither torch nor a GPU.

use std::process::Command;

#[test]
fn the_comparison_inside_pytorch() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ab");
    let run = Command::new("python3").args(["-m", "unittest", "discover", "-s", folder]).output();
    let Ok(output) = run else {
        eprintln!("skipped: python3");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
