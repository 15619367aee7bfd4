//! What the row `settings` says that NCCL's configuration files set is what stock NCCL puts into
//! the environment.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use testkit::cases;

use lab::nccl::library::read_conf_files;
use serde_json::Value;
use testkit::forked::ForkedChild;
use testkit::{Scratch, alone, program, require};

use crate::common::cached_nccl;

/// Lines as people write them. The names are none of NCCL's, so that the doctor has nothing else to
/// say of them.
const FILE: &str = "Z1=1\n Z2=2\nZ3 =3\nZ4= 4\nZ5=5 # five\n#Z6=6\n #Z7=7\nexport Z8=8\nZ9=\"9\"\nZ10\n=Z11\nZ12=\n\
                    Z13=a=b\n\nZ1=again\nZSET=file\nZEMPTY=file\nZLAST=x";

/// What variables are set to whose names begin with a Z but for what people write before a name; a
/// carriage return cannot be told in a report.
type Set = BTreeMap<String, String>;

fn is_of_file(name: &str) -> bool {
    name.trim_start_matches([' ', '#']).trim_start_matches("export ").starts_with('Z')
}

fn in_environment() -> Set {
    let all = std::env::vars().filter(|(name, _)| is_of_file(name));
    all.map(|(name, value)| (name, value.trim_end_matches('\r').to_owned())).collect()
}

/// What the doctor says that the files set.
fn doctor_says(folder: &Path, env: &[(&str, String)]) -> Set {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrite"));
    command
        .args(["doctor", "--json", "--only", "settings"])
        .env("LD_LIBRARY_PATH", folder.join("L"));
    command.env_remove("NCCL_CONF_FILE").envs(env.iter().map(|(name, value)| (*name, value)));
    let printed = program::run(&mut command);
    let report: Value =
        serde_json::from_str(&printed.stdout).unwrap_or_else(|e| panic!("{e}: {printed}"));
    let findings = report["rows"][0]["findings"].as_array().expect("findings");
    let facts =
        findings.iter().filter_map(|finding| finding["fact"].as_str()?.rsplit_once(", from "));
    let set = facts.filter_map(|(fact, _)| fact.split_once('='));
    let set = set
        .filter(|(name, _)| is_of_file(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    set.chain([("ZSET".to_owned(), "env".to_owned()), ("ZEMPTY".to_owned(), String::new())])
        .collect()
}

fn agrees_with(release: &str) {
    let nccl = require!(cached_nccl(release));
    let folder = Scratch::new();
    let cache = nccl.ancestors().nth(3).expect("the folder of the cache").to_str().expect("text");
    // HOME is set before the process starts: some code reads it once.
    let env = [
        ("FILES", folder.to_str().expect("text")),
        ("XDG_CACHE_HOME", cache),
        ("ZSET", "env"),
        ("ZEMPTY", ""),
    ];
    alone(&env, || {
        let folder = fs::canonicalize(std::env::var("FILES").expect("set")).expect("it is there");
        let text = |name: &str| folder.join(name).to_str().expect("text").to_owned();
        for name in ["L", "home"] {
            fs::create_dir(folder.join(name)).expect("made");
        }
        fs::write(text("L/libnccl.so.2"), format!("NCCL version {release}+cuda12.4"))
            .expect("written");
        fs::write(text("named"), FILE).expect("written");
        fs::write(text("home/.nccl.conf"), "ZHOME=1\nZ1=home\n").expect("written");
        let home = ("HOME", text("home"));
        let cases = [
            vec![home.clone()],
            vec![home.clone(), ("NCCL_CONF_FILE", text("named"))],
            vec![home.clone(), ("NCCL_CONF_FILE", text("absent"))],
            vec![home.clone(), ("NCCL_CONF_FILE", String::new())],
            vec![home, ("NCCL_CONF_FILE", "~/.nccl.conf".into())],
        ];
        for env in cases {
            let child = ForkedChild::start(|| {
                for (name, value) in &env {
                    // SAFETY: this process has one thread.
                    unsafe { std::env::set_var(name, value) };
                }
                read_conf_files(&nccl).expect("NCCL reads them");
                let set = serde_json::to_string(&in_environment()).expect("JSON");
                fs::write(folder.join("set"), set).expect("written");
            });
            assert!(child.ended().success(), "{env:?}");
            let nccls: Set =
                serde_json::from_slice(&fs::read(folder.join("set")).expect("written"))
                    .expect("JSON");
            assert_eq!(doctor_says(&folder, &env), nccls, "NCCL {release}, {env:?}");
        }
    });
}

cases! { ();
    settings_agrees_with_nccl_2_21 => agrees_with("2.21.5");
    settings_agrees_with_nccl_2_25 => agrees_with("2.25.1");
    settings_agrees_with_nccl_2_28 => agrees_with("2.28.9");
    settings_agrees_with_nccl_2_30 => agrees_with("2.30.7");
    settings_agrees_with_nccl_2_32 => agrees_with("2.32.3");
}
