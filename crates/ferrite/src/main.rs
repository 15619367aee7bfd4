//! `ferrite`: see the library crate for what it does and `cli` for how it is told.

fn main() {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info"))
        .format_timestamp(None)
        .format_target(false)
        .init();
    std::process::exit(ferrite::cli::main());
}
