//! The program `ferrite`: the library crate does the work, and `cli` has the command line.

fn main() {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info"))
        .format_timestamp(None)
        .format_target(false)
        .init();
    std::process::exit(ferrite::cli::main());
}
