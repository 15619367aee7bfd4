//! Runs a program on the system's own libibverbs and one of its driver libraries, with softrnic as
//! kernel and card (softrnic/provider).

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use clap::ValueEnum;

use crate::find::variable;
use crate::library::{beside, this_program};

/// The driver libraries whose queues softrnic can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Provider {
    /// Of ConnectX
    Mlx5,
    /// Of Broadcom's NetXtreme-E
    #[value(name = "bnxt_re")]
    BnxtRe,
    /// Of Alibaba Cloud's elastic RDMA
    Erdma,
    /// Of AMD's Pensando
    Ionic,
}

/// Versions of libibverbs' interface for driver libraries that are known, by the number in the
/// names of these: that of rdma-core 39 to 55, and of later ones.
const KNOWN: [u32; 5] = [34, 57, 59, 64, 65];

/// Where distributions have driver libraries.
const FOLDERS: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/libibverbs", "/usr/lib/aarch64-linux-gnu/libibverbs",
    "/usr/lib64/libibverbs", "/usr/lib/libibverbs", "/usr/local/lib/libibverbs",
];

impl Provider {
    fn name(self) -> &'static str {
        match self {
            Self::Mlx5 => "mlx5",
            Self::BnxtRe => "bnxt_re",
            Self::Erdma => "erdma",
            Self::Ionic => "ionic",
        }
    }

    /// Softrnic's devices that have the limits of such cards begin so in `SOFTRNIC_DRIVER`.
    fn driver(self) -> &'static str {
        self.name()
    }

    /// The variables that a program needs. The error is a sentence.
    pub(crate) fn variables(self) -> Result<Vec<(&'static str, OsString)>, String> {
        if !cfg!(target_arch = "x86_64") {
            return Err(format!(
                "--provider is for x86_64, and this is {}: run without it, on softrnic's own library",
                std::env::consts::ARCH
            ));
        }
        self.require_installed()?;
        require_no_other()?;
        let exe = this_program()?;
        let library = beside(&exe, "softrnic-provider")
            .map(|folder| folder.join("libsoftrnic-provider.so"))
            .filter(|file| file.exists());
        let Some(library) = library else {
            let exe = exe.display();
            return Err(format!(
                "no ../softrnic-provider/libsoftrnic-provider.so beside {exe}; scripts/build.sh \
                 builds it"
            ));
        };
        let mut preload = OsString::from(library);
        if let Some(others) = variable("LD_PRELOAD") {
            preload.push(":");
            preload.push(others);
        }
        let driver = variable("SOFTRNIC_DRIVER").unwrap_or_else(|| self.driver().to_owned());
        Ok(vec![("LD_PRELOAD", preload), ("SOFTRNIC_DRIVER", driver.into())])
    }

    /// Its library is there, in a version that is known.
    fn require_installed(self) -> Result<(), String> {
        let name = self.name();
        let (before, after) = (format!("lib{name}-rdmav"), ".so");
        let files = FOLDERS.iter().flat_map(fs::read_dir).flatten().flatten();
        let versions: Vec<(u32, PathBuf)> = files
            .filter_map(|file| {
                let name = file.file_name().into_string().ok()?;
                let version = name.strip_prefix(&before)?.strip_suffix(after)?.parse().ok()?;
                Some((version, file.path()))
            })
            .collect();
        if versions.iter().any(|(version, _)| KNOWN.contains(version)) {
            return Ok(());
        }
        Err(match versions.first() {
            None => format!(
                "--provider {name}: no lib{name}-rdmav*.so in {}; Debian and Ubuntu have it in the \
                 package ibverbs-providers{}",
                FOLDERS.join(", "),
                if self == Self::Ionic { " of rdma-core 61 and newer" } else { "" }
            ),
            Some((_, path)) => format!(
                "--provider {name}: {} is of a version of rdma-core that is not known; known are {}: \
                 rdma-core 39 to 65",
                path.display(),
                KNOWN.map(|version| format!("rdmav{version}")).join(", ")
            ),
        })
    }
}

/// The program finds the system's libibverbs. The error is a sentence.
fn require_no_other() -> Result<(), String> {
    let folders = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&folders)
        .flat_map(|folder| ["libibverbs.so.1", "libibverbs.so"].map(|name| folder.join(name)))
        .map(|file| ("LD_LIBRARY_PATH", file));
    let named = variable("NCCL_IBVERBS_LIB").map(|file| ("NCCL_IBVERBS_LIB", file.into()));
    let is_ours = |file: &PathBuf| {
        let name = b"SOFTRNIC_FABRIC";
        fs::read(file).is_ok_and(|bytes| bytes.windows(name.len()).any(|part| part == name))
    };
    match on_path.chain(named).find(|(_, file)| is_ours(file)) {
        None => Ok(()),
        Some((variable, file)) => Err(format!(
            "{variable} leads the program to {}, softrnic's own library, and --provider is for the \
             system's: leave it out",
            file.display()
        )),
    }
}

/// What sysfs shows of the cards.
#[derive(Debug)]
pub(crate) struct Front {
    provider: Provider,
    /// The PCI device, as its maker numbers them.
    pub(crate) part: u32,
}

impl Front {
    /// The cards that the environment asks for. The error is a sentence.
    pub(crate) fn planned(provider: Provider) -> Result<Self, String> {
        let driver = variable("SOFTRNIC_DRIVER").unwrap_or_default();
        if !driver.starts_with(provider.driver()) {
            let name = provider.name();
            return Err(format!(
                "--provider {name} needs devices with the limits of its cards, not of {driver}: \
                 leave --driver and SOFTRNIC_DRIVER out, or name one that begins with {name}"
            ));
        }
        Ok(Self { provider, part: ibverbs::control::planned_part()? })
    }

    /// As a kernel names device `index`.
    pub(crate) fn device(&self, index: usize) -> String {
        let name = self.provider.name();
        match self.provider {
            Provider::BnxtRe => format!("{name}{index}"),
            Provider::Mlx5 | Provider::Erdma | Provider::Ionic => format!("{name}_{index}"),
        }
    }

    pub(crate) fn card(&self) -> String {
        match self.provider {
            Provider::Mlx5 => format!("MT{}", self.part),
            Provider::BnxtRe | Provider::Erdma | Provider::Ionic => self.provider.name().to_owned(),
        }
    }

    /// The maker's number on the PCI bus.
    pub(crate) fn vendor(&self) -> u32 {
        match self.provider {
            Provider::Mlx5 => 0x15b3,
            Provider::BnxtRe => 0x14e4,
            Provider::Erdma => 0x1ded,
            Provider::Ionic => 0x1dd8,
        }
    }

    /// By which libibverbs finds the driver library.
    pub(crate) fn alias(&self) -> String {
        let (vendor, part) = (self.vendor(), self.part);
        format!("pci:v{vendor:08X}d{part:08X}sv{vendor:08X}sd{part:08X}bc02sc07i00")
    }
}
