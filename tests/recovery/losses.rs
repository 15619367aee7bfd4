//! Paths that lose what is sent, without any device that says so.

use crate::fabric::{Fabric, all_arrives};
use crate::stream::{LONG, SHORT};
use ferrite::error::Result;
