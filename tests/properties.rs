//! What `getProperties` says is what NCCL's own IB transport says of the same devices: topology
//! search and tuning see no difference.

mod common;

use common::setting::{mount_namespaces, setting, stock_nccl};
use lab::error::Error;
use lab::error::Result;
use lab::nccl::library::Source;
use lab::nccl::release;
use lab::pair::PairPermit;
use lab::transport::Properties;
use lab::transport::Transport;
use std::path::Path;
use std::process::Command;
use testkit::dist::{dist, softrnic_program};
use testkit::{Scratch, program, require, test_name};

/// Whose properties a process is to write down, and where.
const WHOSE: &str = "FERRITE_TEST_PROPERTIES_OF";
const PLACE: &str = "FERRITE_TEST_PROPERTIES_IN";

/// In a process that was started for it: writes the properties of all devices.
fn write_down(whose: &str, place: &Path) -> Result<()> {
    let source = if whose == "plugin" {
        Source::plugin(dist().join("lib/libnccl-net.so"))
    } else {
        Source::stock(release::find(None)?)
    };
    let transport = Transport::open(&source)?;
    let all = (0..transport.devices()?)
        .map(|device| transport.properties(device))
        .collect::<Result<Vec<_>>>()?;
    let text = serde_json::to_string(&all).map_err(|e| Error::Data(e.to_string()))?;
    std::fs::write(place, text).map_err(|e| Error::io("the file of properties", e))
}

/// The properties that `whose` transport reports on devices made with `options`, in a process of
/// its own.
fn properties(whose: &str, options: &[&str], env: &[(&str, &str)]) -> Result<Vec<Properties>> {
    let folder = Scratch::new();
    let place = folder.join("properties");
    let mut command = Command::new(dist().join("bin/softrnic"));
    command.args(["run", "--faithful"]).args(options).arg("--");
    command.arg(std::env::current_exe().expect("the path of this program"));
    command.args([&test_name(), "--exact", "--nocapture"]).env(WHOSE, whose).env(PLACE, &place);
    command.envs([
        ("NCCL_IB_MERGE_NICS", "0"),
        ("NCCL_SOCKET_IFNAME", "lo"),
        ("NCCL_NET_PLUGIN", "none"),
    ]);
    let printed = program::run(command.envs(env.iter().copied()));
    let text = std::fs::read_to_string(&place)
        .unwrap_or_else(|e| panic!("{whose} wrote nothing ({e}): {printed}"));
    serde_json::from_str(&text).map_err(|e| Error::Data(e.to_string()))
}

/// Compares field by field; `differ` changes the stock transport's where Ferrite means to say
/// something else.
fn are_equal(
    options: &[&str],
    env: &[(&str, &str)],
    count: usize,
    differ: impl Fn((usize, &mut Properties)),
) -> Result<()> {
    if let (Ok(whose), Some(place)) = (std::env::var(WHOSE), std::env::var_os(PLACE)) {
        return write_down(&whose, Path::new(&place));
    }
    require!(setting());
    require!(softrnic_program());
    require!(mount_namespaces());
    require!(stock_nccl("2.21.5"));
    let _turn = PairPermit::wait();
    let ours = properties("plugin", options, env)?;
    let mut theirs = properties("stock", options, env)?;
    assert_eq!((ours.len(), theirs.len()), (count, count), "{ours:#?}\n{theirs:#?}");
    theirs.iter_mut().enumerate().for_each(differ);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!(ours.pci_path.is_some(), "{ours:?}");
        assert_eq!(ours, theirs);
    }
    Ok(())
}

fn nothing(_: (usize, &mut Properties)) {}

/// Names are keys in NCCL's topology: where a card has two ports, the stock transport gives both
/// the same.
fn named_by_port((index, stock): (usize, &mut Properties)) {
    stock.name = format!("{}/{}", stock.name, index % 2 + 1);
}

mod same_as_of_stock_nccl {
    use super::*;

    #[test]
    fn roce_devices_of_one_port() -> Result<()> {
        are_equal(&["--devices", "3"], &[], 3, nothing)
    }

    #[test]
    fn roce_devices_of_two_ports() -> Result<()> {
        are_equal(&["--ports", "2"], &[], 4, named_by_port)
    }

    #[test]
    fn infiniband_devices_of_two_ports_and_speeds() -> Result<()> {
        let options = [
            "--ports",
            "2",
            "--link",
            "ib",
            "--speed",
            "400,softrnic0/2=100,softrnic1/1=56,softrnic1/2=25",
        ];
        are_equal(&options, &[], 4, named_by_port)
    }

    #[test]
    fn two_functions_of_one_card() -> Result<()> {
        are_equal(&["--same-card", "--devices", "4"], &[], 4, nothing)
    }

    #[test]
    fn two_functions_of_one_card_that_are_not_merged() -> Result<()> {
        let env = [("NCCL_IB_MERGE_VFS", "0")];
        are_equal(&["--same-card", "--devices", "4"], &env, 4, nothing)
    }

    const FUSED: (&str, &str) = ("NCCL_IB_MERGE_NICS", "1");

    #[test]
    fn two_functions_of_one_card_as_one_device() -> Result<()> {
        are_equal(&["--same-card", "--devices", "4"], &[FUSED], 2, nothing)
    }

    /// Each rail is named by its port.
    #[test]
    fn two_ports_of_one_card_as_one_device() -> Result<()> {
        let options =
            ["--ports", "2", "--link", "ib", "--speed", "100,softrnic1/1=56,softrnic1/2=56"];
        are_equal(&options, &[FUSED], 2, |(index, stock)| {
            assert_eq!(stock.name, format!("softrnic{index}+softrnic{index}"));
            stock.name = format!("softrnic{index}/1+softrnic{index}/2");
        })
    }

    #[test]
    fn two_ports_of_cards_that_a_filter_admits_as_one_device() -> Result<()> {
        let env = [FUSED, ("NCCL_IB_HCA", "softrnic0:2,softrnic1:1,softrnic3:1")];
        are_equal(&["--same-card", "--devices", "4", "--ports", "2"], &env, 2, |(index, stock)| {
            stock.name = ["softrnic0/2+softrnic1/1", "softrnic3/1"][index].into();
        })
    }

    #[test]
    fn gpu_memory_of_fused_devices() -> Result<()> {
        let options = ["--same-card", "--devices", "4", "--gpu", "both"];
        are_equal(&options, &[FUSED], 2, nothing)
    }

    /// Ports that tell no link layer are passed over, and not counted among those of a card either.
    #[test]
    fn ports_without_a_link_layer() -> Result<()> {
        let options = [
            "--ports",
            "2",
            "--link",
            "roce,softrnic0/1=unspecified,softrnic2/2=unspecified",
            "--devices",
            "3",
        ];
        let ports = [(0, 2), (1, 1), (1, 2), (2, 1)];
        are_equal(&options, &[], 4, |(index, stock)| {
            stock.name = format!("{}/{}", stock.name, ports[index].1);
        })
    }

    #[test]
    fn devices_that_a_filter_admits() -> Result<()> {
        let filtered = [("NCCL_IB_HCA", "^=softrnic0,softrnic1:2")];
        are_equal(&["--ports", "2"], &filtered, 1, named_by_port)
    }

    #[test]
    fn gpu_memory_by_dmabuf() -> Result<()> {
        are_equal(&["--gpu", "dmabuf"], &[], 2, nothing)
    }

    #[test]
    fn gpu_memory_by_address() -> Result<()> {
        are_equal(&["--gpu", "both"], &[], 2, nothing)
    }

    /// Later ones know it, 2.21.5 does not.
    #[test]
    fn a_speed_beyond_ndr() -> Result<()> {
        are_equal(&["--speed", "800"], &[], 2, |(_, stock)| stock.speed_mbps = 800_000)
    }

    #[test]
    fn a_speed_beyond_ndr_by_its_bits() -> Result<()> {
        let env = [("NCCL_IB_QUERY_PORT_SPEED", "0")];
        are_equal(&["--speed", "800"], &env, 2, |(_, stock)| stock.speed_mbps = 800_000)
    }
}
