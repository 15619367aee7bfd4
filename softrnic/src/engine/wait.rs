//! How long things have to wait.

use crate::objects::qp::Qp;

/// How soon the service thread looks after bytes that are copied through the shared file, if no poll does.
pub(crate) const STAGED_CHECK_NS: u64 = 100_000;

/// How soon to look again at what another process holds for a moment, in ns.
pub(crate) const BUSY_RETRY_NS: u64 = 20_000;

/// `ns` of modelled time in real time.
pub(crate) fn modelled_ns(qp: &Qp, ns: u64) -> u64 {
    (ns as f64 * qp.fabric.settings.time_scale) as u64
}

/// The wait that a timer code of the responder asks for.
pub(crate) fn rnr_ns(code: u32) -> u64 {
    const HUNDREDTHS_OF_MS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    HUNDREDTHS_OF_MS[code as usize & 31] * 10_000
}
