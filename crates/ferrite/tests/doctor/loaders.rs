//! What the row `plugins` says that NCCL takes is what the loaders of stock NCCL take.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::cases;

use lab::nccl::library::loader_takes;
use serde_json::Value;
use testkit::forked::ForkedChild;
use testkit::{Scratch, alone, program, require};

use crate::common::{cached_nccl, fake_nccl, shared_object};

/// What a file of a case is.
#[derive(Clone, Copy)]
enum Kind {
    /// A plugin with ncclNet v8 to v12.
    Plugin,
    /// A plugin with ncclNet v12 alone.
    OnlyV12,
    /// A library that is no plugin.
    Library,
    /// The plugin, for another processor.
    OtherProcessor,
    Text,
    Folder,
}
use Kind::{Folder, Library, OnlyV12, OtherProcessor, Plugin, Text};

/// A value of `NCCL_NET_PLUGIN`, and the files that there are: in `L`, where the dynamic loader
/// looks, and in `W`, where the process is. `@` stands for the folder of both.
type Case = (Option<&'static str>, &'static [(&'static str, Kind)]);

const DEFAULT: (&str, Kind) = ("L/libnccl-net.so", Plugin);
const NAMED: (&str, Kind) = ("L/libnccl-net-x.so", Plugin);
const HERE: (&str, Kind) = ("W/here.so", Plugin);

const CASES: &[Case] = &[
    (None, &[]),
    (None, &[DEFAULT]),
    (None, &[("L/libnccl-net.so", Text)]),
    (Some(""), &[DEFAULT]),
    (Some("none"), &[DEFAULT]),
    (Some("NonE"), &[DEFAULT, ("L/NonE", Plugin)]),
    (Some("none"), &[DEFAULT, ("L/libnccl-net-none.so", Plugin)]),
    (Some("x"), &[DEFAULT]),
    (Some("x"), &[DEFAULT, NAMED]),
    (Some("X"), &[NAMED]),
    (Some("x"), &[NAMED, ("L/x", Plugin)]),
    (Some("x"), &[NAMED, ("L/x", Text)]),
    (Some("x"), &[NAMED, ("L/x", Library)]),
    (Some("x"), &[NAMED, ("L/x", OtherProcessor)]),
    (Some("x"), &[NAMED, ("L/x", Folder)]),
    (Some("x.so"), &[NAMED, DEFAULT]),
    (Some("x.so"), &[("L/x.so", Plugin)]),
    (Some("libnccl-net-x.so"), &[NAMED]),
    (Some("libnccl-net-x"), &[NAMED]),
    (Some("here.so"), &[HERE, DEFAULT]),
    (Some("./here.so"), &[HERE, DEFAULT]),
    (Some("@/W/here.so"), &[HERE, DEFAULT]),
    (Some("@/W//../W/here.so"), &[HERE]),
    (Some("@/W"), &[HERE, DEFAULT]),
    (Some("@/no/such.so"), &[DEFAULT]),
    (Some("sub/x"), &[("W/libnccl-net-sub/x.so", Plugin)]),
    (Some(" @/W/here.so"), &[HERE, DEFAULT]),
    (Some("@/W/here.so "), &[HERE, DEFAULT]),
    (Some(" "), &[DEFAULT]),
    (Some(","), &[DEFAULT]),
    (Some(",,@/W/here.so,"), &[HERE, DEFAULT]),
    (Some("@/W/here.so,x"), &[HERE, NAMED]),
    (Some("x,@/W/here.so"), &[HERE, NAMED]),
    (Some("@/no/such.so,@/W/here.so"), &[HERE]),
    (Some("y,x"), &[NAMED, DEFAULT]),
    (Some("@/no/such.so, @/W/here.so"), &[HERE]),
    (Some("none,@/W/here.so"), &[HERE]),
    (Some("y,z"), &[DEFAULT]),
    (Some("@/W/text,@/W/here.so"), &[HERE, ("W/text", Text)]),
    (Some("@/W/no-plugin,@/W/here.so"), &[HERE, ("W/no-plugin", Library)]),
    (Some("@/W/v12.so,@/W/here.so"), &[HERE, ("W/v12.so", OnlyV12)]),
    (Some("@/W/v12.so"), &[("W/v12.so", OnlyV12)]),
    // A path of so many characters, alone and before another one.
    (Some("#254"), &[]),
    (Some("#255"), &[]),
    (Some("#256"), &[]),
    (Some("#400"), &[]),
    (Some("#254,@/W/here.so"), &[HERE]),
    (Some("#255,@/W/here.so"), &[HERE]),
    // So many names before one that is there.
    (Some("*13,@/W/here.so"), &[HERE]),
    (Some("*14,@/W/here.so"), &[HERE]),
];

fn write(path: &Path, kind: Kind) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    let bytes = |file: PathBuf| fs::read(file).expect("a fixture");
    let content = match kind {
        Folder => return fs::create_dir(path).expect("made"),
        Text => b"a text that is longer than the header of an ELF file".to_vec(),
        Plugin => bytes(shared_object("tables", &[])),
        OnlyV12 => bytes(shared_object("tables", &["-DONLY_V12"])),
        Library => bytes(fake_nccl()),
        OtherProcessor => {
            let mut content = bytes(shared_object("tables", &[]));
            content[18..20].copy_from_slice(&2_u16.to_le_bytes());
            content
        }
    };
    fs::write(path, content).expect("written");
}

/// The value of a case, with what stands for other text written out; makes the file that `#` stands
/// for.
fn written_out(setting: &str, folder: &str) -> String {
    let setting = setting.replace('@', folder);
    let (first, rest) = setting
        .split_once(',')
        .map_or((setting.as_str(), None), |(first, rest)| (first, Some(rest)));
    let first = if let Some(length) = first.strip_prefix('#') {
        let length: usize = length.parse().expect("a number");
        let mut path = format!("{folder}/W/");
        while length - path.len() > 200 {
            path += &format!("{}/", "d".repeat(99));
        }
        path += &"f".repeat(length - path.len());
        write(Path::new(&path), Plugin);
        path
    } else if let Some(count) = first.strip_prefix('*') {
        let count: usize = count.parse().expect("a number");
        (0..count).map(|n| format!("y{n}")).collect::<Vec<_>>().join(",")
    } else {
        first.to_owned()
    };
    match rest {
        Some(rest) => format!("{first},{rest}"),
        None => first,
    }
}

/// What the doctor says that NCCL `release` takes. `Err`: its words, where it takes none.
fn doctor_says(release: &str, setting: Option<&str>, folder: &Path) -> Result<PathBuf, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrite"));
    command.args(["doctor", "--json", "--only", "plugins"]).current_dir(folder.join("W"));
    command.env("LD_LIBRARY_PATH", folder.join("L")).env_remove("NCCL_NET_PLUGIN");
    command.envs(setting.map(|setting| ("NCCL_NET_PLUGIN", setting)));
    let printed = program::run(&mut command);
    let report: Value =
        serde_json::from_str(&printed.stdout).unwrap_or_else(|e| panic!("{e}: {printed}"));
    let findings = report["rows"][0]["findings"].as_array().expect("findings");
    let is_of = |finding: &&Value| {
        finding["subject"].as_str().is_some_and(|subject| subject.contains(release))
    };
    let fact =
        findings.iter().find(is_of).unwrap_or_else(|| panic!("nothing of {release}: {printed}"));
    let fact = fact["fact"].as_str().expect("a text");
    let taken =
        fact.strip_prefix("takes ").and_then(|rest| rest.split_once(", which is not Ferrite"));
    match taken {
        Some((path, _)) => Ok(fs::canonicalize(path).expect("there is such a file")),
        None if fact.starts_with("takes no plugin") => Err(fact.into()),
        None => panic!("{fact}"),
    }
}

fn agrees_with_the_loader_of(release: &str) {
    let nccl = require!(cached_nccl(release));
    let folder = Scratch::new();
    let text = |name: &str| folder.join(name).to_str().expect("text").to_owned();
    fs::create_dir(text("L")).expect("made");
    let env =
        [("LD_LIBRARY_PATH", text("L")), ("LOADERS", text("")), ("NCCL_CONF_FILE", text("none"))];
    let quiet = [("NCCL_IB_DISABLE", "1"), ("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_DEBUG", "")];
    let env: Vec<(&str, &str)> =
        env.iter().map(|(name, value)| (*name, value.as_str())).chain(quiet).collect();
    alone(&env, || {
        let folder = fs::canonicalize(std::env::var("LOADERS").expect("set")).expect("it is there");
        // Loaded once; each child goes on from here.
        let _nccl = require!(
            lab::nccl::release::verify(&nccl).map_err(|e| testkit::Missing(e.to_string()))
        );
        for (setting, files) in CASES {
            for name in ["L", "W"] {
                let _ = fs::remove_dir_all(folder.join(name));
                fs::create_dir_all(folder.join(name)).expect("made");
            }
            fs::write(folder.join("L/libnccl.so.2"), format!("NCCL version {release}+cuda12.4"))
                .expect("written");
            files.iter().for_each(|(path, kind)| write(&folder.join(path), *kind));
            let setting =
                setting.map(|setting| written_out(setting, folder.to_str().expect("text")));
            let taken = folder.join("taken");
            let child = ForkedChild::start(|| {
                std::env::set_current_dir(folder.join("W")).expect("it is there");
                // SAFETY: this process has one thread.
                unsafe {
                    match &setting {
                        Some(value) => std::env::set_var("NCCL_NET_PLUGIN", value),
                        None => std::env::remove_var("NCCL_NET_PLUGIN"),
                    }
                }
                let path = loader_takes(&nccl).expect("the loader runs").unwrap_or_default();
                fs::write(&taken, path.to_str().expect("text")).expect("written");
            });
            assert!(child.ended().success(), "{setting:?}");
            let loader = Some(PathBuf::from(fs::read_to_string(&taken).expect("written")));
            let loader = loader.filter(|path| !path.as_os_str().is_empty());
            let doctor = doctor_says(release, setting.as_deref(), &folder);
            assert_eq!(
                doctor.as_ref().ok(),
                loader.as_ref(),
                "NCCL {release}, {setting:?}: {doctor:?}"
            );
        }
    });
}

cases! { ();
    plugins_agrees_with_the_loader_of_nccl_2_20 => agrees_with_the_loader_of("2.20.5");
    plugins_agrees_with_the_loader_of_nccl_2_21 => agrees_with_the_loader_of("2.21.5");
    plugins_agrees_with_the_loader_of_nccl_2_25 => agrees_with_the_loader_of("2.25.1");
    plugins_agrees_with_the_loader_of_nccl_2_27 => agrees_with_the_loader_of("2.27.5");
    plugins_agrees_with_the_loader_of_nccl_2_28 => agrees_with_the_loader_of("2.28.9");
    plugins_agrees_with_the_loader_of_nccl_2_30 => agrees_with_the_loader_of("2.30.7");
    plugins_agrees_with_the_loader_of_nccl_2_32 => agrees_with_the_loader_of("2.32.3");
}
