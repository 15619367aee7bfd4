//! How processes of several hosts find each other, and the lines that they send. What they say is their own matter.
//!
//! | file | what is in it |
//! |---|---|
//! | `role` | what this process is among them, by hand or by a launcher's variables |
//! | `admission` | letting callers in by the token |
//! | `reach` | connecting to a server that may not be there yet |
//! | `line_conn` | a connection that carries one JSON object a line |

pub mod admission;
pub mod line_conn;
pub mod reach;
pub mod role;
