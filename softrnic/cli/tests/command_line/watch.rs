//! `softrnic stat --watch`.

use std::io::{BufRead, BufReader, Lines, Read};
use std::process::{Child, ChildStdout, Stdio};

use crate::program::{Folder, hold_if_started, refused};

/// `softrnic stat --watch` on the fabrics of `folder`, and the lines that it prints.
fn start(folder: &Folder, arguments: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = folder.command(&[&["stat", "--watch"], arguments].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    (child, lines)
}

/// How it ended, and what it said in the end.
fn end(mut child: Child) -> (Option<i32>, String) {
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    (child.wait().expect("ends").code(), said)
}

#[test]
fn reports_follow_each_other_until_nobody_is_left() {
    hold_if_started();
    let folder = Folder::new();
    let holder = folder.hold("one");
    let (child, mut lines) = start(&folder, &["0.01", "--json"]);
    for _ in 0..3 {
        let line = lines.next().expect("a line").expect("text");
        let seen: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((&seen["fabric"], &seen["processes"][0]["pid"]), (&"one".into(), &holder.pid().into()));
    }
    let (other, mut text) = start(&folder, &["0.01"]);
    assert_eq!(text.next().expect("a line").expect("text"), "fabric one");
    assert!(text.any(|line| line.expect("text").is_empty()), "between two reports");
    assert_eq!(text.next().expect("a line").expect("text"), "fabric one");
    holder.end();
    // Both read on, so that neither waits for a full pipe.
    assert!(lines.all(|line| line.is_ok()) && text.all(|line| line.is_ok()));
    for child in [child, other] {
        assert_eq!(end(child), (Some(0), "softrnic: no process uses one any more\n".to_owned()));
    }
}

#[test]
fn a_reader_that_goes_ends_it() {
    hold_if_started();
    let folder = Folder::new();
    let holder = folder.hold("one");
    let (child, mut lines) = start(&folder, &["0.01"]);
    assert!(lines.next().is_some());
    drop(lines);
    let (code, said) = end(child);
    assert!(code == Some(2) && said.contains("cannot write to standard output"), "{code:?}: {said}");
    holder.end();
}

#[test]
fn a_period_that_cannot_be_is_refused() {
    assert!(refused(&["stat", "--watch", "soon"]).contains("must be seconds, from 0.01 to 86400"));
}
