//! Shared objects that a test compiles from C.

use crate::unique::unique_name;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared object of the C file `source`, compiled with `flags`. It is compiled once into
/// `folder`, the `CARGO_TARGET_TMPDIR` of the tests, and anew when the program of these tests is
/// newer than that.
#[must_use]
pub fn shared_object(folder: &str, source: &Path, flags: &[&str]) -> PathBuf {
    let text = std::fs::read(source).expect("the C file is there");
    let mut hash = DefaultHasher::new();
    (source, text, flags).hash(&mut hash);
    let stem = source.file_stem().expect("a file has a name").to_string_lossy().into_owned();
    let target = Path::new(folder).join(format!("lib{stem}-{:016x}.so", hash.finish()));
    let time = |path: &Path| path.metadata().and_then(|meta| meta.modified()).ok();
    let tests = std::env::current_exe().expect("the tests are a file");
    // Others may compile it now. Who has loaded it must not find another file in its place.
    let lock = File::create(target.with_extension("lock")).expect("a file beside it");
    lock.lock().expect("it can be locked");
    if time(&target) > time(&tests) {
        return target;
    }
    let fresh = target.with_extension(unique_name("so"));
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&fresh).arg(source).args(flags);
    assert!(
        cc.status().expect("a C compiler is there").success(),
        "{} does not compile",
        source.display()
    );
    std::fs::rename(&fresh, &target).expect("it can be put in place");
    target
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scratch;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn who_needs_it_at_the_same_time_gets_the_same_file() {
        let folder = Scratch::new();
        let source = folder.join("one.c");
        std::fs::write(&source, "int one(void) { return 1; }\n").expect("written");
        let into = folder.path().to_str().expect("text");
        let number = || {
            let object = shared_object(into, &source, &[]);
            object.metadata().expect("it is there").ino()
        };
        let numbers: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(number)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(numbers, [number(); 4]);
    }

    #[test]
    fn a_file_is_compiled_once_with_the_same_flags() {
        let folder = Scratch::new();
        let source = folder.join("two.c");
        std::fs::write(&source, "int two(void) { return 2 * FACTOR; }\n").expect("written");
        let into = folder.path().to_str().expect("text");
        let first = shared_object(into, &source, &["-DFACTOR=1"]);
        let time =
            |path: &Path| path.metadata().and_then(|meta| meta.modified()).expect("it is there");
        let made = time(&first);
        assert_eq!(shared_object(into, &source, &["-DFACTOR=1"]), first);
        assert_eq!(time(&first), made);
        assert_ne!(shared_object(into, &source, &["-DFACTOR=2"]), first);
        std::fs::write(&source, "int two(void) { return 3 * FACTOR; }\n").expect("written");
        assert_ne!(shared_object(into, &source, &["-DFACTOR=1"]), first);
    }
}
