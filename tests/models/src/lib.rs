//! What threads and processes share without a lock, explored by a model checker,
//! [loom](https://docs.rs/loom): its tests are all that this crate has. They take source files of
//! the plugin and of the software device, with the checker's atomics in place of the processor's.
