//! The plugin as a file, and the layouts that both sides of the C boundary have to agree on.

use nccl_net::testing::nccl;
use object::{Object, ObjectSymbol};
use std::collections::HashMap;
use std::mem::{offset_of, size_of};
use std::process::Command;
use testkit::{Missing, Scratch, require};

/// The built plugin.
fn plugin() -> Result<Vec<u8>, Missing> {
    let path = testkit::dist::plugin()?;
    Ok(std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

#[test]
fn the_plugin_exports_its_tables_and_nothing_else() {
    let bytes = require!(plugin());
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let exports = file.exports().expect("it has dynamic symbols");
    let mut exported: Vec<_> = exports.iter().map(|e| String::from_utf8_lossy(e.name()).into_owned()).collect();
    exported.sort();
    // As NCCL's versions have them: 19, 20, 20, 22 and 22 slots.
    let tables = [(8, 152), (9, 160), (10, 160), (11, 176), (12, 176)];
    let names = tables.map(|(version, _)| format!("ncclNetPlugin_v{version}"));
    for ((_, bytes), name) in tables.iter().zip(&names) {
        let symbol = file.dynamic_symbols().find(|s| s.name() == Ok(name.as_str())).expect("exported");
        assert_eq!((symbol.size(), symbol.kind()), (*bytes, object::SymbolKind::Data), "{name}");
    }
    let profilers = ["ncclProfiler_v4", "ncclProfiler_v5", "ncclProfiler_v6"];
    for name in profilers {
        let symbol = file.dynamic_symbols().find(|s| s.name() == Ok(name)).expect("exported");
        assert_eq!((symbol.size(), symbol.kind()), (48, object::SymbolKind::Data), "{name}");
    }
    let mut names = names.to_vec();
    names.extend(profilers.map(str::to_owned));
    names.sort();
    assert_eq!(exported, names);
    assert_eq!(size_of::<nccl::ncclNet_v8_t>(), 152);
}

#[test]
fn the_plugin_needs_nothing_but_libc_and_its_kin() {
    let bytes = require!(plugin());
    use object::read::elf::{Dyn, FileHeader};
    let header = object::elf::FileHeader64::<object::Endianness>::parse(&*bytes).expect("a 64-bit ELF file");
    let endian = header.endian().expect("known byte order");
    let sections = header.sections(endian, &*bytes).expect("sections");
    let (dynamic, strings) = sections.dynamic(endian, &*bytes).expect("readable").expect("dynamic");
    let strings = sections.strings(endian, &*bytes, strings).expect("strings");
    let text = |offset: u64| String::from_utf8_lossy(strings.get(offset as u32).expect("a string")).into_owned();
    let value = |tag: i64| dynamic.iter().find(|d| d.d_tag(endian) == tag).map(|d| d.d_val(endian));
    let needed: Vec<_> =
        dynamic.iter().filter(|d| d.d_tag(endian) == object::elf::DT_NEEDED).map(|d| text(d.d_val(endian))).collect();
    for library in &needed {
        let kin = ["libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "ld-linux", "libgcc_s.so"];
        assert!(kin.iter().any(|k| library.starts_with(k)), "the plugin needs {library}");
    }
    assert_eq!(value(object::elf::DT_SONAME).map(text).as_deref(), Some("libnccl-net.so"));
    let flags = value(object::elf::DT_FLAGS_1).unwrap_or(0);
    assert_ne!(flags & u64::from(object::elf::DF_1_NODELETE), 0, "it has threads and must not be unmapped");
    assert_ne!(flags & u64::from(object::elf::DF_1_NOW), 0, "all symbols are resolved when it is loaded");
}

/// Collects `(C expression, what Rust says)`.
macro_rules! layout {
    ($out:ident, $c:literal, $rust:ty { $($field:ident),* }) => {
        $out.push((concat!("sizeof(", $c, ")").to_owned(), size_of::<$rust>()));
        $($out.push((concat!("offsetof(", $c, ", ", stringify!($field), ")").to_owned(), offset_of!($rust, $field)));)*
    };
}

/// What a C compiler says of each expression.
fn ask_c(includes: &str, expressions: &[(String, usize)]) -> HashMap<String, usize> {
    let dir = Scratch::new();
    let lines: String =
        expressions.iter().map(|(e, _)| format!("  printf(\"%s=%zu\\n\", \"{e}\", (size_t){e});\n")).collect();
    let source =
        format!("#include <stddef.h>\n#include <stdio.h>\n{includes}\nint main(void) {{\n{lines}  return 0;\n}}\n");
    std::fs::write(dir.join("layout.c"), source).expect("written");
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let compiler = cc::Build::new().target(&target).host(&target).opt_level(0).cargo_metadata(false).get_compiler();
    let mut compile = compiler.to_command();
    compile
        .arg("-I")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/include"))
        .arg(dir.join("layout.c"))
        .arg("-o")
        .arg(dir.join("layout"));
    assert!(compile.status().expect("a C compiler").success());
    let output = Command::new(dir.join("layout")).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().filter_map(|l| l.rsplit_once('=')).map(|(e, v)| (e.to_owned(), v.parse().expect("a number"))).collect()
}

fn compare(includes: &str, expressions: &[(String, usize)]) {
    let c = ask_c(includes, expressions);
    for (expression, rust) in expressions {
        assert_eq!(c.get(expression), Some(rust), "{expression}");
    }
}

#[test]
fn the_v8_structs_have_the_layout_of_c() {
    let mut all = Vec::new();
    layout!(
        all,
        "ncclNetProperties_v8_t",
        nccl::ncclNetProperties_v8_t {
            name,
            pciPath,
            guid,
            ptrSupport,
            regIsGlobal,
            speed,
            port,
            latency,
            maxComms,
            maxRecvs,
            netDeviceType,
            netDeviceVersion
        }
    );
    layout!(
        all,
        "ncclNetDeviceHandle_v8_t",
        nccl::ncclNetDeviceHandle_v8_t { netDeviceType, netDeviceVersion, handle, size, needsProxyProgress }
    );
    layout!(
        all,
        "ncclNet_v8_t",
        nccl::ncclNet_v8_t {
            name,
            init,
            devices,
            getProperties,
            listen,
            connect,
            accept,
            regMr,
            regMrDmaBuf,
            deregMr,
            isend,
            irecv,
            iflush,
            test,
            closeSend,
            closeRecv,
            closeListen,
            getDeviceMr,
            irecvConsumed
        }
    );
    compare("#include \"nccl/net_v8.h\"", &all);
    // What NCCL itself has been seen to use.
    assert_eq!((size_of::<nccl::ncclNetProperties_v8_t>(), size_of::<nccl::ncclNet_v8_t>()), (64, 152));
    assert_eq!(offset_of!(nccl::ncclNetProperties_v8_t, latency), 40);
    assert_eq!(offset_of!(nccl::ncclNet_v8_t, test), 13 * 8);
}

#[test]
fn the_verbs_structs_have_the_layout_of_c() {
    use rdma_sys::*;
    let mut all = Vec::new();
    layout!(all, "struct ibv_wc", ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, wc_flags });
    layout!(all, "struct ibv_send_wr", ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr });
    layout!(all, "struct ibv_recv_wr", ibv_recv_wr { wr_id, next, sg_list, num_sge });
    layout!(all, "struct ibv_sge", ibv_sge { addr, length, lkey });
    layout!(
        all,
        "struct ibv_qp_attr",
        ibv_qp_attr {
            qp_state,
            path_mtu,
            rq_psn,
            sq_psn,
            dest_qp_num,
            qp_access_flags,
            ah_attr,
            pkey_index,
            max_rd_atomic,
            max_dest_rd_atomic,
            min_rnr_timer,
            port_num,
            timeout,
            retry_cnt,
            rnr_retry
        }
    );
    layout!(all, "struct ibv_ah_attr", ibv_ah_attr { grh, dlid, sl, is_global, port_num });
    layout!(all, "struct ibv_qp_init_attr", ibv_qp_init_attr { send_cq, recv_cq, srq, cap, qp_type, sq_sig_all });
    layout!(
        all,
        "struct ibv_port_attr",
        ibv_port_attr { state, active_mtu, gid_tbl_len, lid, active_width, active_speed, link_layer }
    );
    layout!(all, "struct ibv_device_attr", ibv_device_attr { sys_image_guid, max_qp, phys_port_cnt });
    layout!(all, "struct ibv_mr", ibv_mr { lkey, rkey });
    layout!(all, "struct ibv_qp", ibv_qp { context, qp_num });
    layout!(all, "struct ibv_cq", ibv_cq { context });
    layout!(all, "struct ibv_context", ibv_context { ops, async_fd });
    layout!(all, "struct ibv_context_ops", ibv_context_ops { poll_cq, post_send, post_recv });
    layout!(all, "struct ibv_async_event", ibv_async_event { element, event_type });
    layout!(all, "union ibv_gid", ibv_gid { raw });
    compare("#include <infiniband/verbs.h>", &all);
}
