//! Which GID is used, of tables that the kernel fills from the interfaces' addresses.

use crate::common::log::{log, said};
use crate::common::process::pair;
use crate::data::works;
use crate::guest::{Case, is_worker, network, shell};
use lab::error::Result;

/// The devices have the GID of their link-local address (0), of the IPv4 one (1) and of an IPv6 one
/// (2); each way of choosing one leads to a connection that carries everything.
fn chosen(case: &Case, settings: &[(&str, &str)], words: &str) -> Result<()> {
    if !is_worker() {
        shell(
            "ip address add fd77::1/64 dev veth0 nodad; ip address add fd77::2/64 dev veth1 nodad",
        );
        shell(
            "until [ \"$(cat /sys/class/infiniband/rxe1/ports/1/gids/2)\" = fd77:0000:0000:0000:0000:0000:0000:0002 ]; do sleep 0.1; done",
        );
    }
    let setting =
        settings.iter().fold(case.setting(), |setting, (name, value)| setting.env(name, value));
    pair(&setting, |worker| {
        works(case, worker)?;
        let device = worker.rank();
        let words = words.replace('N', &(device + 1).to_string());
        assert!(
            case.is_stock() || said(&[&format!("rxe{device} RoCE"), &words]),
            "{words:?} is not in {}",
            log()
        );
        Ok(())
    })?;
    Ok(())
}

pub(crate) fn ipv4_by_default(case: &Case) -> Result<()> {
    chosen(case, &[], "GID 10.77.0.N (index 1; routable, RoCE v2)")
}

pub(crate) fn ipv6_by_family(case: &Case) -> Result<()> {
    chosen(case, &[("NCCL_IB_ADDR_FAMILY", "AF_INET6")], "GID fd77::N (index 2; routable, RoCE v2)")
}

pub(crate) fn link_local_by_index(case: &Case) -> Result<()> {
    chosen(case, &[("NCCL_IB_GID_INDEX", "0")], "GID fe80::ff:fe00:770N")
}

/// Without another address the link-local one is taken; the other one is taken again when it is
/// back, wherever it is then.
pub(crate) fn an_address_that_goes_and_comes_back(case: &Case) -> Result<()> {
    pair(&case.setting(), |worker| {
        let device = worker.rank();
        let address = format!("10.77.0.{}/24 dev veth{device}", device + 1);
        works(case, worker)?;
        shell(&format!("ip address del {address}"));
        worker.barrier()?;
        works(case, worker)?;
        assert!(
            said(&[&format!("rxe{device}: now using GID fe80::"), "instead of 10.77.0."]),
            "{}",
            log()
        );
        worker.barrier()?;
        shell(&format!("ip address add {address}"));
        worker.barrier()?;
        if device == 0 {
            network("ways");
        }
        worker.barrier()?;
        works(case, worker)?;
        let back = format!("GID 1 10.77.0.{}", device + 1);
        assert!(said(&[&back, "now using GID", "instead of fe80::"]), "{}", log());
        Ok(())
    })?;
    Ok(())
}
