//! Keeps softrnic's own `ibv_` functions out of the table of symbols: programs are to find those of
//! the system's libibverbs.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsoftrnic-provider.so");
    // Threads and hooks outlive any dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
