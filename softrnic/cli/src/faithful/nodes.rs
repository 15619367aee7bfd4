//! The files of `/dev/infiniband`: character devices, for programs that look for one before they open a device (UCX). Nothing is behind
//! them: each is another name of `/dev/null`.

use std::fs::{self, File};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::Path;

use ibverbs::control::Device;

use super::namespace::{Failure, bind, tmpfs};

const DEV: &str = "/dev";
/// Where a kernel has the devices of its RDMA drivers.
pub(super) const FOLDER: &str = "/dev/infiniband";

/// Fills the folder for `devices`, in this process's mount namespace.
pub(super) fn show(devices: &[Device]) -> std::result::Result<(), Failure> {
    if !Path::new(FOLDER).is_dir() {
        replace_dev()?;
    }
    tmpfs(Path::new(FOLDER))?;
    for (index, _) in devices.iter().enumerate() {
        let node = Path::new(FOLDER).join(format!("softverbs{index}"));
        File::create(&node).map_err(cannot("a file cannot be made"))?;
        bind(Path::new("/dev/null"), &node)?;
    }
    Ok(())
}

fn cannot(what: &'static str) -> impl Fn(Error) -> Failure {
    move |error| (what, error)
}

/// A folder in memory in place of `/dev`, with all that it has, so that more can be put into it.
fn replace_dev() -> std::result::Result<(), Failure> {
    let before = File::open(DEV).map_err(cannot("it cannot be opened"))?;
    tmpfs(Path::new(DEV))?;
    // What is mounted on it hides the former folder from its own path.
    let before = format!("/proc/self/fd/{}", before.as_raw_fd());
    for entry in fs::read_dir(&before).map_err(cannot("it cannot be read"))? {
        let entry = entry.map_err(cannot("it cannot be read"))?;
        let here = Path::new(DEV).join(entry.file_name());
        if make_place(&entry, &here).map_err(cannot("an entry cannot be made"))? {
            bind(&entry.path(), &here)?;
        }
    }
    fs::create_dir(FOLDER).map_err(cannot("a folder cannot be made"))
}

/// A place of the same kind as `entry`. False: it is a symbolic link, and that is all.
fn make_place(entry: &fs::DirEntry, here: &Path) -> Result<bool> {
    let kind = entry.file_type()?;
    if kind.is_symlink() {
        symlink(fs::read_link(entry.path())?, here)?;
        return Ok(false);
    }
    if kind.is_dir() {
        fs::create_dir(here)?
    } else {
        drop(File::create(here)?)
    }
    Ok(true)
}
