//! Generates the ncclNet v8 bindings from the project's own header and compiles the one variadic
//! function, the log callback, which stable Rust cannot define. Notes the commit.

use std::path::{Path, PathBuf};
use std::process::Command;

const HEADER: &str = "../../include/nccl/net_v8.h";
const LOGGER: &str = "src/nccl/logger.c";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={HEADER}");
    println!("cargo:rerun-if-changed={LOGGER}");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    bindgen::Builder::default()
        .header(HEADER)
        .allowlist_type("nccl.*")
        .allowlist_var("NCCL_.*")
        .prepend_enum_name(false)
        .size_t_is_usize(true)
        .layout_tests(false)
        .generate()
        .map_err(|()| format!("bindgen cannot read {HEADER}"))?
        .write_to_file(out.join("net_v8.rs"))?;
    cc::Build::new().file(LOGGER).warnings(true).try_compile("ferrite_logger")?;
    note_commit();
    Ok(())
}

/// `FERRITE_COMMIT` for the compiler, where this is a checkout and git is there.
fn note_commit() {
    // Outside of a checkout git would take one that happens to lie around it.
    if !Path::new("../../.git").exists() {
        return;
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    for watched in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--path-format=absolute", "--git-path", watched]) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    println!("cargo:rerun-if-changed=src");
    let modified = git(&["--no-optional-locks", "status", "--porcelain", "--untracked-files=no"])
        .is_some_and(|files| !files.is_empty());
    println!("cargo:rustc-env=FERRITE_COMMIT={commit}{}", if modified { ", modified" } else { "" });
}

/// What git says to this.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
