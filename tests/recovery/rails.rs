//! Rails that fail and return while the connection has others.

use crate::fabric::{Fabric, all_arrives, end, inject, recoveries, run, sent};
use crate::stream::{LONG, SHORT, Stream};
use ferrite::error::Result;
