//! The Ferrite plugin.
